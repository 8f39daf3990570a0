"""What ``tidegate doctor --smoke`` concludes from a short run with a model made from nothing.

Each check is a function of facts, as in ``core.doctor``, so that every fault can be tried without its machine.
"""

import math

import msgspec

from tidegate.core.doctor import MachineFinding
from tidegate.core.sizing.accelerators import Accelerator
from tidegate.core.sizing.learner import Training, flop_utilisation

# Mean absolute difference of logprobs (nats) between a device and the CPU. In float32 it comes from the order of sums;
# bfloat16 has eight bits, and a vLLM server's good updates differ by up to 0.11 (docs/engines.md).
FLOAT32_ERROR_MAX = 1e-3
BFLOAT16_ERROR_MAX = 0.15
# Mean KL (nats a token) between engine and learner under the same version; another set of weights has 1 and more.
MISMATCH_KL_MAX = 0.05
# Relative, between ranks and one process: bfloat16 and another order of sums. A lost share of two is a half.
RANKS_ERROR_MAX = 0.02
# Of a loss near zero, whose advantages cancel.
RANKS_LOSS_ERROR_MAX = 2e-3
# From a kill, or from the end of a pause, until the learner made another update.
RECOVERY_MAX_S = 60.0


class NumberFacts(msgspec.Struct, frozen=True):
    """Mean absolute differences of logprobs (nats) between ``device`` and the CPU; ``problem``: why there are none."""

    device: str = "cpu"
    float32_error: float = 0.0
    bfloat16_error: float = 0.0
    problem: str = ""


def check_numbers(facts: NumberFacts) -> MachineFinding:
    """Whether the device computes what the CPU does."""
    if facts.problem:
        return MachineFinding(
            "smoke numbers", "fail", facts.problem, "look at the lines driver, torch and devices"
        )
    if facts.device == "cpu":
        return MachineFinding("smoke numbers", "skip", "torch can use no GPU to compare with the CPU")
    text = (
        f"logprobs of {facts.device} differ from the CPU's by {facts.float32_error:.1e} nats in float32,"
        f" {facts.bfloat16_error:.1e} in bfloat16"
    )
    # Written so that NaN fails.
    if facts.float32_error <= FLOAT32_ERROR_MAX and facts.bfloat16_error <= BFLOAT16_ERROR_MAX:
        return MachineFinding("smoke numbers", "pass", text)
    return MachineFinding(
        "smoke numbers",
        "fail",
        f"{text}; at most {FLOAT32_ERROR_MAX:g} and {BFLOAT16_ERROR_MAX:g} are rounding",
        "turn TF32 off (NVIDIA_TF32_OVERRIDE=0), look for errors of the GPU's memory (nvidia-smi -q -d ECC), and try"
        " another GPU of this machine",
    )


class RanksFacts(msgspec.Struct, frozen=True):
    """An update by all ranks, and by one from the same state and batch. ``problem``: why there is none."""

    version: str = ""
    loss: float = 0.0
    loss_alone: float = 0.0
    grad_norm: float = 0.0
    grad_norm_alone: float = 0.0
    problem: str = ""


class SmokeFacts(msgspec.Struct, frozen=True):
    """What a short run did. Times in seconds; None is what never happened.

    ``versions`` of ``wanted``: that the learner made. ``recovered_s``: by the process that was killed, and ``resumed``
    after the pause. ``drained_s``: from the pause until no rollout was running. ``mismatch_kl``: mean of the updates at
    lag 0. ``update_tokens`` and ``update_s``: of the median update of completions alone. ``one_rank``: None with one
    rank, and before a first update. ``problem``: why the run ended early; ``audit``: what the audit said, empty without
    one.
    """

    engine: str
    ranks: int
    wanted: int
    versions: int = 0
    run_s: float = 0.0
    first_update_s: float | None = None
    recovered_s: dict[str, float | None] = {}
    drained_s: float | None = None
    resumed_s: float | None = None
    balanced: bool | None = None
    audit: str = ""
    mismatch_kl: float | None = None
    update_tokens: float = 0.0
    update_s: float = 0.0
    one_rank: RanksFacts | None = None
    problem: str = ""


def check_versions(facts: SmokeFacts) -> MachineFinding:
    """Whether the loop trained as many versions as it should."""
    ranks = f"{facts.ranks} rank{'s' if facts.ranks > 1 else ''}"
    text = f"{facts.versions} of {facts.wanted} versions with {ranks} and the engine {facts.engine}"
    if facts.versions >= facts.wanted and facts.first_update_s is not None:
        return MachineFinding(
            "smoke run",
            "pass",
            f"{text} in {facts.run_s:.0f} s, the first after {facts.first_update_s:.0f} s",
        )
    found = f"{text} after {facts.run_s:.0f} s{f': {facts.problem}' if facts.problem else ''}"
    return MachineFinding(
        "smoke run", "fail", found, "run it again with --keep, and look at logs/ of the folder that it names"
    )


def check_recoveries(facts: SmokeFacts) -> list[MachineFinding]:
    """Whether training went on after the death of each process that was killed, and after the pause."""
    if facts.first_update_s is None:
        return [MachineFinding("smoke pause", "skip", "nothing was killed or paused before a first update")]
    findings = [
        _check_wait(
            f"smoke kill {name}",
            waited_s,
            done="trained on {:.1f} s after kill -9",
            undone="no update after kill -9",
            fix=f"look at {name} in logs/ (--keep)",
        )
        for name, waited_s in facts.recovered_s.items()
    ]
    pause = _check_wait(
        "smoke pause",
        facts.drained_s,
        done="no rollout was running {:.1f} s after a pause",
        undone="work was still in flight long after a pause",
        fix="look at actor-0 in logs/ (--keep)",
    )
    if pause.outcome == "pass":
        resumed = _check_wait(
            "smoke pause",
            facts.resumed_s,
            done="the next update came {:.1f} s after its end",
            undone="no update came after its end",
            fix="look at admission in logs/ (--keep)",
        )
        pause = msgspec.structs.replace(resumed, found=f"{pause.found}, {resumed.found}")
    return [*findings, pause]


def _check_wait(check: str, waited_s: float | None, *, done: str, undone: str, fix: str) -> MachineFinding:
    if waited_s is None:
        return MachineFinding(check, "fail", undone, fix)
    text = done.format(waited_s)
    if waited_s > RECOVERY_MAX_S:
        return MachineFinding(check, "fail", f"{text}; {RECOVERY_MAX_S:g} s are expected", fix)
    return MachineFinding(check, "pass", text)


def check_accounting(facts: SmokeFacts) -> MachineFinding:
    """Whether every admitted trajectory is accounted for once."""
    if facts.balanced:
        return MachineFinding("smoke audit", "pass", facts.audit)
    if not facts.audit and facts.first_update_s is None:
        return MachineFinding("smoke audit", "skip", "the run ended without a summary, before a first update")
    return MachineFinding(
        "smoke audit",
        "fail",
        facts.audit or "the run wrote no summary",
        "keep the folder (--keep) and report it: this is a defect, whatever the machine",
    )


def check_mismatch(facts: SmokeFacts) -> MachineFinding:
    """Whether engine and learner give the same tokens the same logprobs under the same version."""
    if facts.mismatch_kl is None:
        return MachineFinding("smoke engine", "skip", "no update trained tokens at lag 0")
    text = f"KL between {facts.engine} and the learner at lag 0 is {facts.mismatch_kl:.1e} nats a token"
    if math.isfinite(facts.mismatch_kl) and abs(facts.mismatch_kl) <= MISMATCH_KL_MAX:
        return MachineFinding("smoke engine", "pass", text)
    return MachineFinding(
        "smoke engine",
        "fail",
        f"{text}; {MISMATCH_KL_MAX:g} is rounding",
        "train with policy.dtype float32 to see whether it is rounding, and compare the engine's version with"
        " docs/engines.md",
    )


def check_ranks(facts: SmokeFacts) -> MachineFinding:
    """Whether ranks share an update's gradient as one process computes it."""
    check, found = "smoke ranks", facts.one_rank
    if found is None:
        why = "one rank has none to compare with" if facts.ranks == 1 else "no update was made"
        return MachineFinding(check, "skip", why)
    fix = "keep the folder (--keep) and report it: ranks that disagree with one process train something else"
    if found.problem:
        return MachineFinding(
            check, "fail", f"no update was computed again by one rank: {found.problem}", fix
        )
    text = (
        f"update {found.version} by {facts.ranks} ranks and by one: loss {found.loss:.5f} and {found.loss_alone:.5f},"
        f" gradient norm {found.grad_norm:.5f} and {found.grad_norm_alone:.5f}"
    )
    is_close = math.isclose(
        found.loss, found.loss_alone, rel_tol=RANKS_ERROR_MAX, abs_tol=RANKS_LOSS_ERROR_MAX
    ) and math.isclose(found.grad_norm, found.grad_norm_alone, rel_tol=RANKS_ERROR_MAX)
    return MachineFinding(check, "pass", text) if is_close else MachineFinding(check, "fail", text, fix)


def check_utilisation(facts: SmokeFacts, training: Training, gpu: Accelerator | None) -> MachineFinding:
    """The share of a GPU's peak that an update reaches (model FLOP utilisation), of the completions' tokens alone.

    It never fails: a model as small as this one keeps no GPU busy.
    """
    check = "smoke utilisation"
    if not facts.update_s:
        return MachineFinding(check, "skip", "no update was measured")
    rate = facts.update_tokens / facts.update_s
    text = f"{rate:,.0f} trained tokens/s, {rate / facts.ranks:,.0f} a rank"
    if gpu is None:
        return MachineFinding(check, "skip", f"{text}; no share of a peak, as plans know none of this device")
    # As many ranks as the run had, whatever the training was planned with.
    training = msgspec.structs.replace(training, ranks=facts.ranks)
    share = flop_utilisation(training, gpu, tokens=facts.update_tokens, seconds=facts.update_s)
    return MachineFinding(check, "pass", f"{text}; {share:.1%} of the peak of {gpu.name} (MFU)")


def smoke_findings(
    numbers: NumberFacts, run: SmokeFacts, training: Training, gpu: Accelerator | None
) -> list[MachineFinding]:
    """All checks, in the order in which faults explain one another."""
    return [
        check_numbers(numbers),
        check_versions(run),
        check_mismatch(run),
        check_ranks(run),
        *check_recoveries(run),
        check_accounting(run),
        check_utilisation(run, training, gpu),
    ]
