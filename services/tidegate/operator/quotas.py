"""Which runs may start: quotas of runs and GPUs, first come first served. Pure.

A run that holds its place keeps it: a quota that is lowered stops no run. One that asks for more GPUs than it was
given waits for the difference with its old release. Who does not fit into its namespace's quota holds up only later
runs of that namespace; who does not fit into the quota of all holds up all later ones, so that large runs do not wait
for ever. One that could never fit holds up no other.
"""

from collections.abc import Iterator, Sequence

import msgspec

from tidegate.operator.config import QuotaConfig, QuotaLimits
from tidegate.operator.objects import RunKey


class QuotaDemand(msgspec.Struct, frozen=True):
    """One run: what it holds (``has_place``, ``granted`` GPUs), and what it asks for (``gpus``; None: nothing new)."""

    key: RunKey
    created_at_s: float
    gpus: int | None
    has_place: bool = False
    granted: int = 0


class QuotaVerdict(msgspec.Struct, frozen=True):
    """``fits``: it may have what it asks for. ``never``: not even alone. ``message``: the numbers, where it may not."""

    fits: bool
    never: bool = False
    message: str = ""


class _Used:
    """Runs and GPUs that are taken, of all and by namespace."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}
        self.gpus: dict[str, int] = {}

    def take(self, namespace: str, runs: int, gpus: int) -> None:
        for name in ("", namespace):
            self.runs[name] = self.runs.get(name, 0) + runs
            self.gpus[name] = self.gpus.get(name, 0) + gpus


def judge(demands: Sequence[QuotaDemand], quota: QuotaConfig) -> dict[RunKey, QuotaVerdict]:
    """A verdict for each run that asks for something, in the order of their creation."""
    used, verdicts = _Used(), dict[RunKey, QuotaVerdict]()
    for demand in demands:
        used.take(demand.key.namespace, int(demand.has_place), demand.granted)
    held_up: dict[str, RunKey] = {}  # by namespace, "" for all: who waits first
    for demand in sorted(demands, key=lambda each: (each.created_at_s, each.key)):
        if demand.gpus is None:
            continue
        namespace = demand.key.namespace
        runs, gpus = int(not demand.has_place), max(0, demand.gpus - demand.granted)
        scopes = [("", quota.total), (namespace, quota.of(namespace))]
        impossible = [
            sentence
            for name, limits in scopes
            for sentence in _beyond(limits, name, runs=1, gpus=demand.gpus, used=_Used())
        ]
        if impossible and (runs or gpus):
            verdicts[demand.key] = QuotaVerdict(False, never=True, message="; ".join(impossible))
            continue
        waits = [
            (name, sentence)
            for name, limits in scopes
            for sentence in _beyond(limits, name, runs=runs, gpus=gpus, used=used)
        ]
        before = [(name, held_up[name]) for name in ("", namespace) if name in held_up]
        if not runs and not gpus:
            waits, before = [], []
        if waits:
            # Beyond the quota of its namespace it holds up that namespace only.
            of_namespace = any(name for name, _ in waits)
            held_up.setdefault(namespace if of_namespace else "", demand.key)
            verdicts[demand.key] = QuotaVerdict(False, message="; ".join(text for _, text in waits))
        elif before:
            verdicts[demand.key] = QuotaVerdict(False, message=f"{before[0][1]} waits before it")
        else:
            used.take(namespace, runs, gpus)
            verdicts[demand.key] = QuotaVerdict(True)
    return verdicts


def _beyond(limits: QuotaLimits, name: str, *, runs: int, gpus: int, used: _Used) -> Iterator[str]:
    """A sentence for each limit that would be exceeded; what is not asked for exceeds nothing."""
    where = f"namespace {name}" if name else "all namespaces"
    taken_runs, taken_gpus = used.runs.get(name, 0), used.gpus.get(name, 0)
    if runs and limits.runs is not None and taken_runs + runs > limits.runs:
        yield f"{taken_runs} of {limits.runs} runs of {where} are taken"
    if gpus and limits.gpus is not None and taken_gpus + gpus > limits.gpus:
        yield f"it asks for {gpus} GPUs, and {taken_gpus} of {limits.gpus} of {where} are taken"
