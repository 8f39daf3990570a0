"""Goodput control: which staleness budget inside [0, max_lag] gives the most samples/s x effective sample size.

Throughput grows with the budget until rollouts and training overlap, and the effective sample size falls with it, so
goodput has one broad maximum. The controller holds a budget, tries a neighbour at intervals, and moves only when the
neighbour was better by more than the noise, twice. It never leaves [0, max_lag], which stays the hard bound.
"""

from typing import Annotated

import msgspec


class GoodputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the budget may move.

    ``enabled``: off keeps ``staleness.max_lag``. ``window_s``: seconds a budget is measured for; several learner steps
    or it measures noise. ``settle_s``: seconds after a change that count for nothing, while work admitted under the
    old budget is trained. ``margin``: share by which a neighbour must be better. ``probe_every_s``: seconds between
    two trials at first; each that finds nothing doubles it, up to ``probe_every_s_max``.
    """

    enabled: bool = False
    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 10.0
    settle_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 3.0
    margin: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.05
    probe_every_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 10.0
    probe_every_s_max: Annotated[float, msgspec.Meta(gt=0.0, le=86400.0)] = 160.0


class GoodputState(msgspec.Struct, frozen=True):
    """``base``: the budget to hold; ``lag``: the one in force, a neighbour while one is tried.

    ``base_goodput``: of the last whole window on ``base``. ``wins``: trials in a row that this neighbour won.
    ``direction``: where the next trial goes. ``sum`` and ``count`` make the mean of the current window.
    Times are seconds on a monotonic clock.
    """

    base: int
    lag: int
    base_goodput: float | None = None
    direction: int = 1
    wins: int = 0
    fruitless: int = 0
    changed_at_s: float = 0.0
    window_from_s: float | None = None
    rested_from_s: float = 0.0
    sum: float = 0.0
    count: int = 0
    moves: int = 0


WINS_TO_MOVE = 2


def start(max_lag: int, *, now_s: float) -> GoodputState:
    """Start with the whole budget, as without a controller."""
    return GoodputState(base=max_lag, lag=max_lag, direction=-1, changed_at_s=now_s, rested_from_s=now_s)


def advance(
    state: GoodputState, *, goodput: float | None, max_lag: int, config: GoodputConfig, now_s: float
) -> GoodputState:
    """The state after one tick. ``goodput``: samples/s x effective sample size now; None while nothing is measured."""
    replace = msgspec.structs.replace
    if state.base > max_lag or state.lag > max_lag:
        return start(max_lag, now_s=now_s)
    if now_s < max(state.changed_at_s, state.rested_from_s):
        # A clock that was set back must not make a window a long one.
        state = replace(state, changed_at_s=now_s, rested_from_s=now_s, window_from_s=None)
    if goodput is None or not goodput >= 0.0 or now_s - state.changed_at_s < config.settle_s:
        # No measurement, or the pipeline still contains work that was admitted under another budget.
        return replace(state, window_from_s=None, sum=0.0, count=0)
    if state.window_from_s is None:
        return replace(state, window_from_s=now_s, sum=goodput, count=1)
    state = replace(state, sum=state.sum + goodput, count=state.count + 1)
    if now_s - (state.window_from_s or 0.0) < config.window_s:
        return state
    mean = state.sum / state.count
    state = replace(state, window_from_s=None, sum=0.0, count=0)
    if state.lag == state.base:
        if mean <= 0.0:
            return state  # nothing was trained, such as before the first batch
        return _rested(replace(state, base_goodput=mean), max_lag=max_lag, config=config, now_s=now_s)
    return _tried(state, mean, max_lag=max_lag, config=config, now_s=now_s)


def _rested(state: GoodputState, *, max_lag: int, config: GoodputConfig, now_s: float) -> GoodputState:
    """After a whole window on the base: start a trial if one is due."""
    wait_s = min(config.probe_every_s_max, config.probe_every_s * 2**state.fruitless)
    if max_lag == 0 or (not state.wins and now_s - state.rested_from_s < wait_s):
        return state
    direction = state.direction if 0 <= state.base + state.direction <= max_lag else -state.direction
    return msgspec.structs.replace(state, direction=direction, lag=state.base + direction, changed_at_s=now_s)


def _tried(
    state: GoodputState, goodput: float, *, max_lag: int, config: GoodputConfig, now_s: float
) -> GoodputState:
    """After a whole window on a neighbour: adopt it, repeat the trial, or return to the base."""
    replace = msgspec.structs.replace
    back = replace(state, lag=state.base, changed_at_s=now_s, rested_from_s=now_s)
    # Of equal budgets prefer the smaller: the same goodput on fresher data.
    needed = (1.0 + config.margin) if state.direction > 0 else 1.0
    if goodput < needed * (state.base_goodput or 0.0):
        # Enough doublings to reach any maximum.
        return replace(back, direction=-state.direction, wins=0, fruitless=min(30, state.fruitless + 1))
    if state.wins + 1 < WINS_TO_MOVE:
        return replace(back, wins=state.wins + 1)
    return replace(
        state,
        base=state.lag,
        base_goodput=goodput,
        wins=0,
        fruitless=0,
        changed_at_s=now_s,
        rested_from_s=now_s,
        moves=state.moves + 1,
    )
