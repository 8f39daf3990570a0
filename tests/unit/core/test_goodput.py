import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.goodput import GoodputConfig, GoodputState, advance, start

CONFIG = GoodputConfig(enabled=True, window_s=10.0, settle_s=3.0, probe_every_s=10.0)
MAX_LAG = 8


def overlap_then_decay(best: int) -> Callable[[int], float]:
    """Throughput that overlap raises up to ``best``, and a sample size that falls slowly beyond it."""

    def goodput(lag: int) -> float:
        return 100.0 * min(1.0, (lag + 1) / (best + 1)) * 0.9 ** max(0, lag - best)

    return goodput


def run(
    curve: Callable[[int], float], *, seconds: int, noise: float = 0.0, seed: int = 0, max_lag: int = MAX_LAG
) -> list[GoodputState]:
    chance = random.Random(seed)
    state = start(max_lag, now_s=0.0)
    states = [state]
    for now_s in range(seconds):
        seen = curve(state.lag) * (1.0 + chance.gauss(0.0, noise))
        state = advance(state, goodput=max(0.0, seen), max_lag=max_lag, config=CONFIG, now_s=float(now_s))
        states.append(state)
    return states


@pytest.mark.parametrize("best", range(MAX_LAG + 1))
def test_controller_reaches_the_maximum_and_stays(best: int) -> None:
    states = run(overlap_then_decay(best), seconds=3_000)
    assert states[-1].base == best
    later = [state.base for state in states[1_500:]]
    assert len(set(later)) == 1, "hysteresis: it stays at the maximum"


@pytest.mark.parametrize("seed", range(8))
def test_noise_moves_the_budget_little_and_rarely(seed: int) -> None:
    curve = overlap_then_decay(3)
    states = run(curve, seconds=6_000, noise=0.2, seed=seed)
    assert curve(states[-1].base) >= 0.85 * curve(3)
    assert states[-1].moves <= 12


def test_equal_goodput_prefers_the_smaller_budget() -> None:
    states = run(lambda lag: 50.0, seconds=6_000)
    assert states[-1].base == 0


@given(st.integers(0, 6), st.lists(st.one_of(st.none(), st.floats(-1.0, 1e6)), max_size=400))
def test_the_budget_is_never_left(max_lag: int, seen: list[float | None]) -> None:
    state = start(max_lag, now_s=0.0)
    for second, goodput in enumerate(seen):
        state = advance(state, goodput=goodput, max_lag=max_lag, config=CONFIG, now_s=2.0 * second)
        assert 0 <= state.lag <= max_lag
        assert abs(state.lag - state.base) <= 1


def test_smaller_budget_applies_at_once() -> None:
    state = start(8, now_s=0.0)
    assert advance(state, goodput=1.0, max_lag=2, config=CONFIG, now_s=1.0).lag == 2


def test_nothing_measured_moves_nothing() -> None:
    state = start(4, now_s=0.0)
    for second in range(500):
        state = advance(state, goodput=None, max_lag=4, config=CONFIG, now_s=float(second))
    assert state.lag == 4
    assert state.moves == 0


def test_a_clock_set_back_does_not_stop_the_search() -> None:
    state = start(MAX_LAG, now_s=1_000.0)
    for second in range(200):
        state = advance(state, goodput=0.7**state.lag, max_lag=MAX_LAG, config=CONFIG, now_s=float(second))
    assert state.moves > 0
