import itertools
import random
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import num_examples
from tidegate.core.balance import Bottleneck, Signals, diagnose
from tidegate.core.scaling import ScalingConfig, ScalingState, ScalingView, advance, needed_replicas

CONFIG = ScalingConfig(mode="controller", min_replicas=1, max_replicas=32)
# All changes at once: no windows, no delay after a change, steps of any size.
PROMPT = ScalingConfig(
    min_replicas=1, max_replicas=32, step_replicas=32, stabilise_out_s=0.0, stabilise_in_s=0.0, settle_s=0.0
)


def signals(
    num_actors: int, *, wanted: float, noise: float = 0.0, chance: random.Random | None = None
) -> Signals:
    """A learner that consumes the work of ``wanted`` actors, and ``num_actors`` actors at full rate."""
    jitter = 1.0 if chance is None else 1.0 + chance.gauss(0.0, noise)
    supply = num_actors * jitter
    trained = min(supply, wanted)
    return Signals(
        num_actors=num_actors,
        num_environments=1,
        num_learners=1,
        num_stores=1,
        actor_steps_per_s=100.0 * trained,
        actor_busy_ratio=min(1.0, trained / supply) if num_actors else 0.0,
        actor_wait_task_ratio=max(0.0, 1.0 - trained / supply) if num_actors else 0.0,
        learner_samples_per_s=trained,
        learner_busy_ratio=trained / wanted,
        learner_idle_ratio=max(0.0, 1.0 - trained / wanted),
        available=4.0 if supply > wanted else 0.0,
        in_flight=8.0,
        running=4.0,
        batch_size=2,
        max_running=64,
        max_lag=4,
        lag_mean=1.0,
    )


def view_of(found: Signals, **fields: object) -> ScalingView:
    view = ScalingView(found, diagnose(found).bottleneck, replicas=found.num_actors)
    return msgspec.structs.replace(view, **fields)


def once(view: ScalingView, config: ScalingConfig = PROMPT) -> int:
    return recommended(advance(ScalingState(), view, config, now_s=0.0))


def recommended(state: ScalingState) -> int:
    assert state.recommendation is not None
    return state.recommendation.replicas


class World:
    """Actors that start within ``START_S``, and a cluster that applies each recommendation."""

    START_S = 12.0
    TICK_S = 1.0

    def __init__(self, config: ScalingConfig, *, replicas: int, seed: int, noise: float = 0.0) -> None:
        self.config, self.noise = config, noise
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.replicas = self.alive = replicas
        self.coming: list[float] = []
        self.state = ScalingState()
        self.steps: list[tuple[float, int]] = []

    def run(self, wanted: Callable[[float], float], *, seconds: int) -> list[int]:
        history: list[int] = []
        for _ in range(seconds):
            self.now_s += self.TICK_S
            self.alive += sum(at_s <= self.now_s for at_s in self.coming)
            self.coming = [at_s for at_s in self.coming if at_s > self.now_s]
            found = signals(self.alive, wanted=wanted(self.now_s), noise=self.noise, chance=self.chance)
            view = view_of(found, replicas=self.replicas)
            self.state = advance(self.state, view, self.config, now_s=self.now_s)
            self._apply(recommended(self.state))
            history.append(self.replicas)
        return history

    def _apply(self, replicas: int) -> None:
        if replicas == self.replicas:
            return
        self.steps.append((self.now_s, replicas - self.replicas))
        if replicas > self.replicas:
            more = replicas - self.replicas
            self.coming += [self.now_s + self.START_S * self.chance.uniform(0.5, 1.5) for _ in range(more)]
        else:
            fewer = self.replicas - replicas
            kept = max(0, len(self.coming) - fewer)
            self.alive -= fewer - (len(self.coming) - kept)
            self.coming = self.coming[:kept]
        self.replicas = replicas

    def turns(self) -> int:
        """How often the direction of the steps changed."""
        signs = [delta > 0 for _, delta in self.steps]
        return sum(a != b for a, b in itertools.pairwise(signs))


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [1.0, 2.0, 3.5, 8.0, 17.0, 30.0])
@pytest.mark.parametrize("start", [1, 6, 32])
def test_scaling_converges_to_the_number_that_keeps_both_sides_busy(wanted: float, start: int) -> None:
    world = World(CONFIG, replicas=start, seed=0)
    history = world.run(lambda _: wanted, seconds=4_000)
    final = history[-1]
    assert final >= 0.9 * wanted, "the learner waits at most a tenth of its time"
    assert final <= wanted / 0.9 + 1.0, "actors idle little more than a tenth of theirs"
    assert set(history[-1_500:]) == {final}
    assert world.turns() == 0, "no reversal"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_noise_causes_no_oscillation(seed: int) -> None:
    world = World(CONFIG, replicas=1 + 31 * (seed % 2), seed=seed, noise=0.15)
    wanted = 3.0 + 2.0 * (seed // 2)
    history = world.run(lambda _: wanted, seconds=7_200)
    assert world.turns() <= 1
    assert 0.85 * wanted <= history[-1] <= 1.4 * wanted + 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_it_follows_a_demand_that_changes_with_one_turn_a_change(seed: int) -> None:
    levels = [4.0, 20.0, 6.0, 12.0]
    world = World(CONFIG, replicas=4, seed=seed, noise=0.05)
    history = world.run(lambda now_s: levels[int(now_s // 2_000) % len(levels)], seconds=8_000)
    assert world.turns() <= len(levels) - 1 + 1
    for number, level in enumerate(levels):
        reached = history[2_000 * (number + 1) - 2]
        assert 0.85 * level <= reached <= 1.3 * level + 1.0
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(world.steps)]
    assert min(gaps) >= CONFIG.step_s
    assert max(abs(delta) for _, delta in world.steps) <= CONFIG.step_replicas


def test_scaling_in_waits_longer_than_scaling_out() -> None:
    def first_step_s(start: int) -> float:
        world = World(CONFIG, replicas=start, seed=0)
        world.run(lambda _: 10.0, seconds=1_000)
        return world.steps[0][0]

    assert first_step_s(5) < CONFIG.stabilise_in_s
    assert first_step_s(20) >= CONFIG.stabilise_in_s


BOTTLENECKS: tuple[Bottleneck, ...] = (
    "actor",
    "learner",
    "environment",
    "inference",
    "weights",
    "store",
    "balanced",
    "idle",
)
RATIO = st.floats(0.0, 1.0)
VIEWS = st.builds(
    ScalingView,
    signals=st.builds(
        Signals,
        num_actors=st.integers(0, 50),
        num_learners=st.integers(0, 1),
        num_stores=st.integers(0, 1),
        actor_wait_task_ratio=RATIO,
        learner_idle_ratio=RATIO,
        learner_samples_per_s=st.floats(0.0, 1e4),
        max_lag=st.integers(0, 8),
        lag_mean=st.floats(0.0, 8.0),
        paused=st.booleans(),
    ),
    bottleneck=st.sampled_from(BOTTLENECKS),
    replicas=st.one_of(st.none(), st.integers(0, 50)),
    paused=st.booleans(),
    scaled_s_ago=st.one_of(st.none(), st.floats(-5.0, 2_000.0)),
    zero_is_ours=st.booleans(),
    asked=st.one_of(st.none(), st.integers(0, 100)),
)


@settings(max_examples=num_examples(60))
@given(
    steps=st.lists(st.tuples(st.floats(-1.0, 400.0), VIEWS), min_size=1, max_size=6),
    low=st.integers(0, 5),
    span=st.integers(0, 10),
    zero=st.booleans(),
)
def test_bounds_step_rate_and_manual_scales_hold_for_any_input(
    steps: list[tuple[float, ScalingView]], low: int, span: int, zero: bool
) -> None:
    config = ScalingConfig(
        min_replicas=low, max_replicas=max(1, low + span), step_replicas=3, zero_when_paused=zero
    )
    state, now_s = ScalingState(), 1_000.0
    for gap_s, view in steps:
        now_s += gap_s
        before = state
        state = advance(state, view, config, now_s=now_s)
        replicas, current = recommended(state), view.current()
        assert replicas >= 0
        if view.scaled_s_ago is not None and view.scaled_s_ago < config.hold_s:
            assert replicas == current, "held"
        elif view.paused and not zero and current:
            assert replicas == current
        elif replicas != current and replicas != 0:
            towards = abs(config.clamp(current) - current)
            assert config.min_replicas <= replicas <= config.max_replicas or abs(replicas - current) < towards
        assert len(state.samples) <= 21
        if state.steps > before.steps and before.changed_at_s is not None and view.asked is None:
            assert (
                view.paused
                or current == 0
                or now_s < before.at_s
                or now_s - before.changed_at_s >= config.step_s
                or replicas == config.clamp(recommended(before))  # bounds go before the rate
            )


@settings(max_examples=num_examples(60))
@given(VIEWS, st.floats(0.0, 1e5))
def test_the_same_tick_twice_changes_nothing(view: ScalingView, now_s: float) -> None:
    first = advance(ScalingState(), view, PROMPT, now_s=now_s)
    again = advance(first, view, PROMPT, now_s=now_s)
    assert again.recommendation is not None
    assert recommended(again) == recommended(first)


@pytest.mark.parametrize("by", ["kubectl", "kube-controller-manager"])
def test_a_scale_by_another_party_is_held_and_is_then_the_starting_point(by: str) -> None:
    found = signals(2, wanted=9.0)
    held = advance(ScalingState(), view_of(found, scaled_by=by, scaled_s_ago=60.0), PROMPT, now_s=0.0)
    assert recommended(held) == 2
    assert held.recommendation is not None
    assert by in held.recommendation.reason
    after = advance(held, view_of(found, scaled_by=by, scaled_s_ago=901.0), PROMPT, now_s=60.0)
    assert recommended(after) == 9


@pytest.mark.parametrize("replicas", [1, 40])
def test_manual_number_outside_of_the_bounds_is_never_overruled(replicas: int) -> None:
    bounds = msgspec.structs.replace(PROMPT, min_replicas=2, max_replicas=16)
    theirs = view_of(signals(replicas, wanted=9.0), scaled_by="kubectl", scaled_s_ago=5_000.0)
    state = advance(ScalingState(), theirs, bounds, now_s=0.0)
    assert recommended(advance(state, theirs, bounds, now_s=6_000.0)) == replicas
    manual = view_of(signals(replicas, wanted=9.0))
    assert recommended(advance(ScalingState(), manual, bounds, now_s=0.0)) == bounds.clamp(replicas)


def test_the_prompt_backlog_does_not_count() -> None:
    few, many = (msgspec.structs.replace(signals(8, wanted=4.0), in_flight=n) for n in (8.0, 1e6))
    assert once(view_of(few)) == once(view_of(many)) == 5


def test_no_scale_out_while_lag_is_near_its_budget() -> None:
    starved = signals(2, wanted=9.0)
    old = msgspec.structs.replace(starved, lag_mean=3.9)
    assert once(view_of(starved)) == 9
    assert once(view_of(old)) == 2
    assert once(view_of(msgspec.structs.replace(old, max_lag=0, lag_mean=0.0))) == 9


@pytest.mark.parametrize("bottleneck", ["environment", "weights", "store"])
def test_no_scale_out_where_actors_are_not_the_bottleneck(bottleneck: Bottleneck) -> None:
    assert once(view_of(signals(2, wanted=9.0), bottleneck=bottleneck)) == 2
    assert once(view_of(signals(20, wanted=9.0), bottleneck=bottleneck)) == 20


def test_zero_by_a_person_is_a_pause_and_zero_of_ours_ends_with_the_pause() -> None:
    config = msgspec.structs.replace(PROMPT, zero_when_paused=True)
    none = signals(0, wanted=4.0)
    assert once(view_of(none), config) == 0
    working = advance(ScalingState(), view_of(signals(4, wanted=4.0)), config, now_s=0.0)
    paused = advance(working, view_of(signals(4, wanted=4.0), paused=True), config, now_s=60.0)
    assert recommended(paused) == 0
    back = advance(paused, view_of(none, zero_is_ours=True), config, now_s=120.0)
    assert recommended(back) == 4
    assert once(view_of(none, zero_is_ours=True), config) == 1, "after a crash of admission, the fewest"


def test_a_pause_leaves_the_actors_unless_asked_otherwise() -> None:
    assert once(view_of(signals(7, wanted=4.0), paused=True)) == 7


def test_no_further_actors_are_requested_while_pods_do_not_start() -> None:
    assert once(view_of(signals(4, wanted=9.0), replicas=8)) == 8


def test_a_hard_sync_does_not_restart_the_windows() -> None:
    config = msgspec.structs.replace(PROMPT, stabilise_out_s=30.0, stabilise_in_s=30.0)
    syncing = msgspec.structs.replace(signals(2, wanted=9.0), paused=True)
    state = ScalingState()
    for second in range(40):
        found = syncing if second % 7 == 6 else signals(2, wanted=9.0)
        state = advance(state, view_of(found), config, now_s=float(second))
    assert recommended(state) == 9


def test_a_restarted_learner_does() -> None:
    config = msgspec.structs.replace(PROMPT, stabilise_out_s=30.0, stabilise_in_s=30.0)
    gone = msgspec.structs.replace(signals(2, wanted=9.0), num_learners=0)
    state = ScalingState()
    for second in range(40):
        state = advance(
            state, view_of(gone if second == 20 else signals(2, wanted=9.0)), config, now_s=float(second)
        )
    assert recommended(state) == 2


def test_a_declared_number_is_taken_inside_the_bounds() -> None:
    assert [once(view_of(signals(4, wanted=4.0), asked=number)) for number in (0, 6, 99)] == [0, 6, 32]


def test_without_a_cluster_the_reporting_actors_count() -> None:
    assert once(view_of(signals(2, wanted=5.0), replicas=None)) == 5
    assert once(view_of(signals(0, wanted=5.0), replicas=None)) == 1


def test_the_reason_names_the_numbers() -> None:
    state = advance(ScalingState(), view_of(signals(2, wanted=8.0)), PROMPT, now_s=0.0)
    assert state.recommendation is not None
    assert state.recommendation.needed == 8
    assert "actor-bound" in state.recommendation.reason
    assert "75%" in state.recommendation.reason


@pytest.mark.parametrize("fields", [{"min_replicas": 9, "max_replicas": 3}, {"stabilise_in_s": 1.0}])
def test_contradictory_settings_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, ScalingConfig)


def test_idle_system_needs_no_actors() -> None:
    still: Iterable[Signals] = (
        Signals(),
        msgspec.structs.replace(signals(2, wanted=4.0), learner_samples_per_s=0.0),
        msgspec.structs.replace(signals(2, wanted=4.0), num_stores=0),
    )
    assert [needed_replicas(view_of(found), PROMPT) for found in still] == [None] * 3
