"""The README of an exported policy: where it comes from and how it was trained, from the run's own files."""

from importlib.metadata import version
from typing import Any

import msgspec

from tidegate.cli.accounting import RunAccounting, ledger_path, read_accounting
from tidegate.cli.audit import one_line
from tidegate.cli.up.history import read_steps
from tidegate.launch.run_folder import read_plan
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.learner.algorithm import find_algorithm
from tidegate.learner.config import LearnerConfig
from tidegate.learner.warmup_record import WARMED_UP
from tidegate.learner.warmup_settings import OF_TASK
from tidegate.runtime.run_event_log import read_events
from tidegate.trajectory_store.verifying import read_head


class CardFacts(msgspec.Struct, frozen=True):
    """What a card tells beside the run file.

    ``accounting`` and ``ledger_head``: of the whole run until now; None and empty where the ledger is elsewhere.
    ``warmup``: the event of the warm-up of its first version, empty without one.
    ``step``: the line of ``steps.jsonl`` of the version, empty of one without. ``evaluation``: its evaluation.
    """

    learner: LearnerConfig
    accounting: RunAccounting | None
    ledger_head: str
    step: dict[str, Any]
    evaluation: dict[str, Any]
    warmup: dict[str, Any] = {}


def read_facts(stored: StoredPolicy) -> CardFacts:
    """The facts of a version; those whose files are elsewhere, as in a pod, are left out.

    Raises:
        CorruptionError: journal or ledger cannot be read.
    """
    folder, made = stored.folder, stored.version
    ledger = ledger_path(folder)
    has_accounting = ledger.is_file()
    steps = [each for each in read_steps(folder) if f"{each['lineage']}@{each['step']}" == str(made)]
    evaluations = [each for each in read_events(folder, "evaluation") if each.get("version") == str(made)]
    warmups = list(read_events(folder, WARMED_UP))
    _, plan = read_plan(stored.described_in or folder)
    return CardFacts(
        learner=plan.services["learner"],
        accounting=read_accounting(folder) if has_accounting else None,
        ledger_head=read_head(ledger) if has_accounting else "",
        step=steps[-1] if steps else {},
        evaluation=evaluations[-1] if evaluations else {},
        warmup=warmups[-1] if warmups else {},
    )


def model_card(stored: StoredPolicy, facts: CardFacts, *, base: str, form: str) -> str:
    """The text of the card. ``base``: the model that training began from; ``form``: what the folder holds."""
    if stored.file.workload.kind == "segments":
        front, about = ["pipeline_tag: reinforcement-learning"], _of_segments(stored, facts)
    else:
        front, about = (
            ["library_name: transformers", "pipeline_tag: text-generation"],
            _of_text(stored, facts, base),
        )
    front += [f"base_model: {msgspec.json.encode(base).decode()}"] if base else []
    sections = [
        f"# {stored.run}, version {stored.version}\n\n{form}\n",
        _table("Training", [*_training(stored), *about]),
        _table("Result", _result(facts)),
        _table("Accounting", _accounting(facts)),
    ]
    tags = ["tags:", "- reinforcement-learning", "- tidegate"]
    return "\n".join(["---", *front, *tags, "---", "", *(section for section in sections if section)])


def _training(stored: StoredPolicy) -> list[tuple[str, object]]:
    return [
        ("run", stored.run),
        ("version", stored.version),
        ("trained with", f"Tidegate {version('tidegate')}"),
        ("environment", stored.file.workload.title),
        ("staleness budget, versions", stored.file.staleness.max_lag),
        ("seed", stored.file.seed),
        ("updates", stored.version.step),
    ]


def _of_segments(stored: StoredPolicy, facts: CardFacts) -> list[tuple[str, object]]:
    file = stored.file
    algorithm, _ = find_algorithm(facts.learner.algorithm, policy_kind=file.policy.family)
    return [
        ("algorithm", algorithm),
        ("network", file.policy.kind),
        ("environment steps", facts.step.get("env_steps")),
    ]


def _of_text(stored: StoredPolicy, facts: CardFacts, base: str) -> list[tuple[str, object]]:
    file, workload, settings = stored.file, stored.file.workload, facts.learner.language_model
    data = [part.dataset.path for part in workload.by_name().values() if part.dataset.path]
    return [
        ("started from", base or "random weights, warmed up on demonstrations"),
        ("supervised warm-up", _warmup(facts.warmup)),
        ("digest of the base model", stored.base_digest),
        ("dataset", ", ".join(data)),
        ("objective", settings.objective),
        ("learning rate", settings.learning_rate),
        ("completions in an update", file.batch_size),
        ("completions of a prompt", workload.num_samples),
        ("temperature", workload.sampler.temperature),
        ("longest completion, tokens", workload.sampler.max_new_tokens),
        ("tokens trained", facts.step.get("env_steps")),
    ]


def _warmup(event: dict[str, Any]) -> str:
    """What the first version was warmed up by, in words; empty without a warm-up."""
    if not event:
        return ""
    before, after, solved = event.get("loss_before"), event.get("loss_after"), event.get("solved")
    result = "" if solved is None else f", {solved:.0%} of held-out ones reproduced"
    if before is not None and after is not None:
        result = f", held-out loss {before:.4g} before and {after:.4g} after, in nats a token"
    source = "the task" if event["demonstrations"] == OF_TASK else event["demonstrations"]
    length = f"{event['steps']:,} steps, {event['tokens']:,} tokens with a loss"
    return f"{event['pairs']:,} demonstrations of {source}, {length}{result}"


def _result(facts: CardFacts) -> list[tuple[str, object]]:
    return [
        ("mean return of the last 100 episodes", facts.step.get("mean_return")),
        ("mean return of greedy episodes", facts.evaluation.get("mean_return")),
        ("mean reward of its last update", facts.step.get("mean_reward")),
        ("held-out problems solved", facts.evaluation.get("solved_share")),
        ("mean reward on held-out problems", facts.evaluation.get("mean_reward")),
    ]


def _accounting(facts: CardFacts) -> list[tuple[str, object]]:
    if facts.accounting is None:
        return []
    audit, by_lag = facts.accounting.audit, facts.accounting.ledger.trained_by_lag
    trained = sum(by_lag.values())
    mean_lag = sum(lag * count for lag, count in by_lag.items()) / trained if trained else 0.0
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(audit.dropped.items()) if count)
    return [
        ("audit of the run", one_line(facts.accounting)),
        ("lag of what was trained, versions", f"mean {mean_lag:.2f}, at most {max(by_lag, default=0)}"),
        ("dropped", dropped or "none"),
        ("head of the ledger's hash chain", facts.ledger_head),
    ]


def _table(title: str, rows: list[tuple[str, object]]) -> str:
    known = [(name, str(value)) for name, value in rows if value not in (None, "", {}, [])]
    if not known:
        return ""
    # A value is one cell: no break of a line or of a cell comes from a text of the run.
    lines = [f"| {name} | {' '.join(value.replace('|', chr(92) + '|').split())} |" for name, value in known]
    return "\n".join([f"## {title}", "", "| | |", "| --- | --- |", *lines, ""])
