"""What each objective observes at one tick, read from the statistics. Without IO.

An observation is a value, a number of good and bad trajectories (lag and age, which the learner judges one by one), or
None. None means that there was nothing to judge: no update since the last observation, a pause, too few samples. It
counts as neither good nor bad.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from tidegate.admission.observations import Observations
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Family
from tidegate.core.drift import Mix, MixWindow, drift, most_lost
from tidegate.core.slo import Slo

# The statistic that is reported beside the good and bad trajectories of an objective.
COUNTED = {
    "lag_p95": learner_stats.LAG_P95,
    "lag_max": learner_stats.LAG_LAST_MAX,
    "age_p95": learner_stats.AGE_LAST_P95_S,
}
# Measured by an update, so observed once per update.
OF_AN_UPDATE = {
    "clipped_fraction": learner_stats.CLIPPED_FRACTION,
    "effective_sample_size": learner_stats.ESS,
}
OF_THE_MIX = {
    "bin_drift": (queue_stats.DECIDED_IN_BIN, queue_stats.TRAINED_IN_BIN),
    "length_drift": (queue_stats.DECIDED_AT_LENGTH, queue_stats.TRAINED_AT_LENGTH),
}
# Drift is taken over this share of its objective's window: a mix needs samples, a trend needs several mixes.
MIX_WINDOW_SHARE = 0.25
# After a declared pause actors start, load a model, and fill the first batch: minutes with large models.
REFILL_S_MAX = 600.0


class Valued(msgspec.Struct, frozen=True):
    """One observation; None when there was nothing to observe. ``detail`` explains the number."""

    value: float | None
    detail: str = ""


class Counted(msgspec.Struct, frozen=True):
    """Trajectories that were judged since the last observation."""

    good: float
    bad: float
    value: float | None


Observation: TypeAlias = Valued | Counted


class IndicatorState(msgspec.Struct, frozen=True):
    """State between two observations: counters, the learner's version, and the mixes of the last minutes.

    ``idle_from_s``: idleness and waste are judged from then on, later than now in a declared pause and after it.
    ``refilling``: since that pause nothing was trained yet.
    """

    counted: dict[str, float] = {}
    step: float | None = None
    mixes: dict[str, MixWindow] = {}
    idle_from_s: float | None = None
    refilling: bool = False


def observe_indicators(
    seen: Observations,
    memory: IndicatorState,
    slos: Mapping[str, Slo],
    *,
    group_size: int,
    paused: bool,
    declared_pause: bool,
    now_s: float,
) -> tuple[dict[str, Observation], IndicatorState]:
    """Each objective's observation, and the state for the next one; ``propagation`` observes propagation.

    ``paused``: admission is paused. ``declared_pause``: an operator paused the run.
    """
    learner = seen.latest("learner", now_s=now_s)
    values = learner[0].values if learner else {}
    step = values.get(learner_stats.VERSION_STEP)
    updated = step is not None and memory.step is not None and step != memory.step
    # Before the first update every service waits for another, and in a pause they idle on purpose.
    began = bool(learner) and (seen.total("learner", learner_stats.BUSY_S) or 0.0) > 0
    memory = _after_pause(
        memory, declared=declared_pause, updated=updated, window_s=seen.window_s, now_s=now_s
    )
    judged = memory.idle_from_s is None
    works = began and judged and not paused
    counted = dict(memory.counted)
    mixes: dict[str, MixWindow] = {}
    found: dict[str, Observation] = {}
    for name, slo in slos.items():
        if name in COUNTED:
            found[name] = Counted(
                good=_since(seen, learner_stats.SLO_GOOD.member(name), counted),
                bad=_since(seen, learner_stats.SLO_BAD.member(name), counted),
                value=values.get(COUNTED[name]),
            )
        elif name in OF_AN_UPDATE:
            found[name] = Valued(values.get(OF_AN_UPDATE[name]) if updated else None)
        elif name in OF_THE_MIX:
            window_s = MIX_WINDOW_SHARE * slo.window_s
            mixes[name] = memory.mixes.get(name, MixWindow()).note(
                mix_of(seen.totals("task_queue"), *OF_THE_MIX[name]), at_s=now_s, window_s=window_s
            )
            mix = mixes[name].increase()
            found[name] = Valued(drift(mix, group_size=group_size), most_lost(mix))
        elif name == "waste_ratio":
            found[name] = Valued(_waste(seen, now_s=now_s) if judged else None)
        elif name == "verifier_failure_ratio":
            found[name] = Valued(_failed_verdicts(seen, now_s=now_s))
        elif name == "learner_idle_ratio":
            idle = seen.ratio("learner", learner_stats.WAIT_BATCH_S, now_s=now_s)
            found[name] = Valued(idle if works else None)
        elif name == "actor_idle_ratio":
            idle = seen.ratio("actor", actor_stats.WAIT_TASK_S, now_s=now_s)
            found[name] = Valued(idle if works and seen.num_alive("actor", now_s=now_s) else None)
    state = msgspec.structs.replace(
        memory, counted=counted, step=memory.step if step is None else step, mixes=mixes
    )
    return found, state


def _after_pause(
    memory: IndicatorState, *, declared: bool, updated: bool, window_s: float, now_s: float
) -> IndicatorState:
    """When idleness is judged again: once the window since the first update after a declared pause is over.

    Until then the window holds the pause, or the time in which actors start and the first batch fills. An update that
    does not come within ``REFILL_S_MAX`` is judged as idleness.
    """
    replace = msgspec.structs.replace
    if declared:
        return replace(memory, idle_from_s=now_s + REFILL_S_MAX, refilling=True)
    from_s = memory.idle_from_s
    if from_s is None or now_s >= from_s or from_s - now_s > REFILL_S_MAX:
        return replace(memory, idle_from_s=None, refilling=False)
    if memory.refilling and updated:
        return replace(memory, idle_from_s=min(from_s, now_s + window_s), refilling=False)
    return memory


def mix_of(totals: Mapping[str, float], decided: Family[Counter], trained: Family[Counter]) -> Mix:
    """Two families of the task queue's counters, by label."""
    return Mix(decided=_labelled(totals, decided), trained=_labelled(totals, trained))


def _labelled(totals: Mapping[str, float], family: Family[Counter]) -> dict[str, float]:
    return {label: number for name, number in totals.items() if (label := family.value_in(name)) is not None}


def _since(seen: Observations, name: Counter, counted: dict[str, float]) -> float:
    """Increase of a learner's counter since the last observation; 0 at the first one."""
    total = seen.total("learner", name)
    if total is None:
        return 0.0
    before = counted.get(name, total)
    counted[name] = total
    return max(0.0, total - before)


def _failed_verdicts(seen: Observations, *, now_s: float) -> float | None:
    """The share of verdicts of the window that failed; None without a verdict."""
    verdicts = seen.increase("environment", environment_stats.VERDICTS, now_s=now_s)
    failures = seen.increase("environment", environment_stats.VERIFIER_FAILURES, now_s=now_s)
    return failures / verdicts if verdicts > 0 else None


def _waste(seen: Observations, *, now_s: float) -> float | None:
    """Dropped share of the trajectories that ended in the window, except drops by design (retired, early stop)."""
    store = "trajectory_store"
    dropped = seen.increase(store, store_stats.DROPPED, now_s=now_s)
    for reason in ("retired", "settled"):
        dropped -= seen.increase(store, store_stats.DROPPED_BECAUSE.member(reason), now_s=now_s)
    ended = dropped + seen.increase(store, store_stats.TRAINED, now_s=now_s)
    return max(0.0, dropped) / ended if ended > 0 else None
