"""GRPO of SmolLM2-135M on the platform beside TRL's GRPOTrainer: same model, task, adapters, tokens and cores.

The peer generates, then trains, in one process with as many threads as there are cores; the platform does both at once,
one thread each. Rates count from the end of the first update, so that no start is in them.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.completion_counts import CompletionCounts, UpdateCompletions, count_completions
from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import STEPS_FILE, THREADS, up_command
from benchmarks.trl_search import TrlChoice, fastest, search
from tidegate.core.errors import UnavailableError
from tidegate.launch.log_tail import final_message
from tidegate.launch.run_file import read_run_file
from tidegate.models.model_folder import pretrained_folder

RUN_FILE = Path("runs") / "smollm2.yaml"
PYTHON_VARIABLE = "TIDEGATE_TRL_PYTHON"
PYTHON = Path(".build") / "trl" / "bin" / "python"
QUICK_UPDATES = 3
RUN_TIMEOUT_S = 3600.0
# The peer imports the task from the one and the counting from the other.
SOURCES = (Path(__file__).parents[1] / "services", Path(__file__).parents[1])
# TRL computes groups of equal rewards, so the platform does as well: both sides train all that they generate.
LEAVES_EQUAL_OUT = False
# The result is the mean over so many last updates.
REACHED_SHARE = 1 / 3


class Case(msgspec.Struct, frozen=True):
    """What both sides are measured on, as overrides of the run file."""

    name: str
    updates: int
    overrides: tuple[str, ...] = ()


CASES = (
    Case("answers of 12 tokens", updates=12),
    Case(
        "answers of 128 tokens to short prompts",
        updates=4,
        overrides=(
            "workload.env=benchmarks/long_answers.py:LongAnswers",
            "workload.sampler.max_new_tokens=128",
            "policy.context_length=192",
        ),
    ),
)


class Update(msgspec.Struct, frozen=True):
    """An update as either side writes it: when it ended, the mean reward of its batch, and its completions.

    ``metrics``: has ``zero_signal_fraction``, the share of its completions in groups of equal rewards.
    """

    step: int
    at_s: float
    mean_reward: float | None
    samples: int = 0
    metrics: dict[str, float] = {}

    def completions(self) -> UpdateCompletions:
        """What is counted of it."""
        return UpdateCompletions(self.samples, self.metrics.get("zero_signal_fraction", 0.0))


class Side(msgspec.Struct, frozen=True):
    """One side's run: ``cpu_s`` of all its processes, start included; ``seconds`` from the first update to the last."""

    updates: list[Update]
    seconds: float
    wall_s: float
    cpu_s: float

    @property
    def reached(self) -> float:
        """Mean reward of the last updates."""
        last = self.updates[-max(1, int(len(self.updates) * REACHED_SHARE)) :]
        return statistics.fmean(each.mean_reward or 0.0 for each in last)

    def counts(self) -> CompletionCounts:
        """Completions of the updates that ``seconds`` covers: all but the first."""
        return count_completions(
            [each.completions() for each in self.updates[1:]], leaves_equal_out=LEAVES_EQUAL_OUT
        )


class CaseResult(msgspec.Struct, frozen=True):
    """The platform and TRL, by seed."""

    case: Case
    pairs: list[tuple[Side, Side]]


def run(setting: BenchSetting) -> BenchResult:
    """The fastest settings of TRL are searched first; then one seed after the other, both sides of each.

    Raises:
        UnavailableError: there is no TRL, or a side ended early.
    """
    python = Path(os.environ.get(PYTHON_VARIABLE, PYTHON))
    if not python.exists():
        raise UnavailableError(
            f"There is no {python}",
            why="TRL lives in an environment of its own",
            fix=f"run `make trl`, or name its interpreter in {PYTHON_VARIABLE}",
        )
    searched = search(partial(_seconds_of_update, setting, python))
    tried = list(islice(searched, 1) if setting.quick else searched)
    choice = fastest(tried).choice
    print_progress(f"trl: the fastest of {len(tried)} settings of TRL: {choice}")
    results = [_measure_case(setting, python, case, choice) for case in CASES]
    return BenchResult(
        name="trl",
        rows=[each for found in results for each in _rows(found)],
        samples=[sample for found in results for sample in _samples(found)],
        notes=[
            f"{RUN_FILE}; evaluations are off",
            *(f"{each.name}: {each.updates} updates" for each in CASES),
            "Groups of equal rewards are in the gradient steps of both sides (drop_zero_signal: false)",
            "CPU-seconds and wall s are of whole runs, with start and end",
            *(
                f"TRL with {each.choice}: "
                + (f"{each.seconds:.0f} s an update" if each.seconds is not None else each.problem[:200])
                for each in tried
            ),
        ],
        table="\n".join(f"{found.case.name}\n\n{_table(found.pairs)}" for found in results),
    )


def _seconds_of_update(setting: BenchSetting, python: Path, choice: TrlChoice) -> float:
    """Of the second of two, on the first case.

    Raises:
        UnavailableError: TRL ended before it.
    """
    done = _peer(setting, python, CASES[0], choice, seed=0, updates=2)
    print_progress(f"trl, {choice}: {done.seconds:.0f} s an update")
    return done.seconds


def _measure_case(setting: BenchSetting, python: Path, case: Case, choice: TrlChoice) -> CaseResult:
    updates = QUICK_UPDATES if setting.quick else case.updates
    pairs: list[tuple[Side, Side]] = []
    for seed in range(1 if setting.quick else setting.seeds):
        ours = _platform(setting, case, seed=seed, updates=updates)
        print_progress(f"{case.name}, seed {seed}: {ours.seconds:.0f} s for {updates - 1} updates")
        theirs = _peer(setting, python, case, choice, seed=seed, updates=updates)
        pairs.append((ours, theirs))
        print_progress(f"{case.name}, seed {seed}, TRL: {theirs.seconds:.0f} s")
    return CaseResult(case, pairs)


def _rows(found: CaseResult) -> list[Row]:
    def both(figure: Callable[[Side], float]) -> tuple[list[float], list[float]]:
        return [figure(ours) for ours, _ in found.pairs], [figure(theirs) for _, theirs in found.pairs]

    name = found.case.name
    return [
        row(
            f"{name}: completions trained",
            "a second",
            *both(lambda side: side.counts().trained / side.seconds),
            goal=Goal(1.0, "at_least", "ratio"),
        ),
        row(
            f"{name}: completions generated for these updates",
            "a second",
            *both(lambda side: side.counts().generated / side.seconds),
        ),
        row(
            f"{name}: of them in groups of unequal rewards",
            "a second",
            *both(lambda side: side.counts().taught / side.seconds),
        ),
        row(
            f"{name}: CPU-seconds of 1,000 completions",
            "CPU-s",
            *both(lambda side: 1000.0 * side.cpu_s / sum(each.samples for each in side.updates)),
        ),
        row(f"{name}: mean reward of the last third", "", *both(lambda side: side.reached)),
    ]


def _samples(found: CaseResult) -> list[Sample]:
    return [
        _sample(f"{name}, {found.case.name}", name, side, seed)
        for seed, pair in enumerate(found.pairs)
        for name, side in (("tidegate", pair[0]), ("peer", pair[1]))
    ]


def _platform(setting: BenchSetting, case: Case, *, seed: int, updates: int) -> Side:
    # A folder of its own: one with another workload is not resumed.
    folder = setting.folder / f"trl-tidegate-{CASES.index(case)}-{seed}"
    command = up_command(
        RUN_FILE,
        folder=folder,
        until=f"version_step>={updates}",
        limit_s=RUN_TIMEOUT_S,
        overrides=[
            *case.overrides,
            f"seed={seed}",
            "task_queue.evaluation_every_versions=0",
            f"learner.language_model.drop_zero_signal={str(LEAVES_EQUAL_OUT).lower()}",
        ],
    )
    return _measured(command, folder, steps=folder / STEPS_FILE, environment=THREADS, updates=updates)


def _peer(
    setting: BenchSetting, python: Path, case: Case, choice: TrlChoice, *, seed: int, updates: int
) -> Side:
    output = setting.folder / f"trl-peer-{CASES.index(case)}-{seed}" / "steps.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    plan = read_run_file(RUN_FILE, list(case.overrides))
    file, learner = plan.file, plan.services["learner"].language_model
    asked = {
        "folder": str(pretrained_folder(file.policy.path)),
        "task": file.workload.env,
        "seed": seed,
        "steps": updates,
        "num_prompts": file.batch_size // file.workload.num_samples,
        "num_samples": file.workload.num_samples,
        "max_new_tokens": file.workload.sampler.max_new_tokens,
        "temperature": file.workload.sampler.temperature,
        "learning_rate": learner.learning_rate,
        "lora_rank": file.policy.lora.rank,
        "lora_alpha": file.policy.lora.alpha,
        "clip": learner.clip_low,
        "beta1": learner.beta1,
        "beta2": learner.beta2,
        "max_grad_norm": learner.max_grad_norm,
        "threads": os.cpu_count() or 1,
        "output": str(output),
        "choice": choice,
    }
    peer = Path(__file__).parent / "peers" / "trl_grpo.py"
    command = [str(python), str(peer), msgspec.json.encode(asked).decode()]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, SOURCES)), "HF_HUB_OFFLINE": "1"}
    return _measured(command, output.parent, steps=output, environment=environment, updates=updates)


def _measured(
    command: Sequence[str], folder: Path, *, steps: Path, environment: Mapping[str, str], updates: int
) -> Side:
    """Run one side to its end; ``steps``: where it writes its updates."""
    log = folder.with_name(f"{folder.name}.log")
    with Program(command, log=log, environment=environment) as program:
        program.wait(timeout_s=RUN_TIMEOUT_S)
        whole = program.end()
    lines = steps.read_bytes() if steps.exists() else b""
    found = [each for each in msgspec.json.Decoder(Update).decode_lines(lines) if 1 <= each.step <= updates]
    # Also where lines of an earlier run are there: one that was refused made none of them.
    if program.exit_code != 0 or len(found) < updates:
        raise UnavailableError(
            f"{log.stem} exited with {program.exit_code} after {len(found)} of {updates} updates",
            why=final_message(log),
            fix=f"see {log}",
        )
    return Side(
        updates=found,
        seconds=found[-1].at_s - found[0].at_s,
        wall_s=whole.at_s - program.started_at_s,
        cpu_s=whole.cpu_s,
    )


def _sample(label: str, name: str, side: Side, seed: int) -> Sample:
    counts = side.counts()
    return Sample(
        side="tidegate" if name == "tidegate" else "peer",
        label=label,
        repetition=seed,
        work=int(counts.trained),
        unit="completions",
        wall_s=side.wall_s,
        cpu_s=side.cpu_s,
        details={
            "seconds": side.seconds,
            "reached": side.reached,
            "generated": counts.generated,
            "taught": counts.taught,
        }
        | {f"reward_{each.step}": each.mean_reward or 0.0 for each in side.updates},
    )


def _table(pairs: Sequence[tuple[Side, Side]]) -> str:
    """Mean reward in fifths of the run, of both sides."""
    lines = ["| updates | tidegate | TRL |", "|---|---|---|"]
    count = len(pairs[0][0].updates)
    step = max(1, count // 5)
    for start in range(0, count, step):
        cells = [
            statistics.fmean(
                each.mean_reward or 0.0 for pair in pairs for each in pair[side].updates[start : start + step]
            )
            for side in (0, 1)
        ]
        lines.append(f"| {start + 1}–{min(count, start + step)} | {cells[0]:.2f} | {cells[1]:.2f} |")
    return "\n".join(lines) + "\n"
