"""What goes wrong in actors' environments, kept beyond the life of the actor that reported it. No IO.

An actor whose environment hung ends, and the next one under its name reports nothing of it; ``status`` and ``explain``
show the cause all the same.
"""

from collections import OrderedDict

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.vector_envs.faults import FAULT_KINDS
from tidegate.wire.stats import ServiceStats

# The newest problem of each of so many actors; a fleet's actors run the same environment.
ACTORS_MAX = 64
# Of them, the lines that are shown.
SHOWN_MAX = 4
# A fault this old explains nothing about the present; it stays in the list of what happened.
RECENT_S = 60.0


class _Reported(msgspec.Struct, frozen=True):
    text: str
    at_s: float


class ActorProblems:
    """The newest problem of each actor, the newest last."""

    def __init__(self) -> None:
        self._problems: OrderedDict[str, _Reported] = OrderedDict()
        # When each was seen last, the oldest first.
        self._stuck: OrderedDict[str, float] = OrderedDict()

    def receive(self, stats: ServiceStats, *, now_s: float) -> None:
        """Follow the report of one actor; others are ignored."""
        if stats.service != "actor":
            return
        self._stuck.pop(stats.instance, None)
        if stats.values.get(actor_stats.ENVIRONMENT_CALL_S, 0.0) > 0.0:
            self._stuck[stats.instance] = now_s
        # Many of them ended stuck, and no other actor may have their names.
        while self._stuck and now_s - next(iter(self._stuck.values())) > RECENT_S:
            self._stuck.popitem(last=False)
        text = next(filter(None, (stats.labels.get(label, "") for label in _LABELS)), "")
        known = self._problems.get(stats.instance)
        if not text or (known is not None and known.text == text):
            return
        self._problems[stats.instance] = _Reported(text, now_s)
        self._problems.move_to_end(stats.instance)
        if len(self._problems) > ACTORS_MAX:
            self._problems.popitem(last=False)

    def num_stuck(self, *, now_s: float, silent_after_s: float) -> int:
        """Living actors whose environments do not return from a call."""
        return sum(now_s - at_s <= silent_after_s for at_s in self._stuck.values())

    def newest(self, *, now_s: float) -> str:
        """The newest problem with its actor; empty without a recent one."""
        if not self._problems:
            return ""
        instance, problem = next(reversed(self._problems.items()))
        return f"{instance}: {problem.text}" if now_s - problem.at_s <= RECENT_S else ""

    def sentences(self, totals: dict[str, float], *, now_s: float) -> list[str]:
        """How often environments failed, and the newest problems, newest first; ``totals``: counters of actors."""
        counts = {
            kind: int(totals.get(actor_stats.ENVIRONMENT_FAULTS.member(kind), 0)) for kind in FAULT_KINDS
        }
        shown = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)
        newest = list(reversed(self._problems.items()))[:SHOWN_MAX]
        return [
            *([f"faults of environments: {shown}"] if shown else []),
            *(
                f"{instance}, {now_s - problem.at_s:.0f} s ago: {problem.text}"
                for instance, problem in newest
            ),
        ]


_LABELS = (actor_stats.ENVIRONMENT_CALL, actor_stats.TASK_REFUSAL, actor_stats.ENVIRONMENT_FAULT)
