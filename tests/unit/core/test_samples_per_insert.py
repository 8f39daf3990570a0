import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.samples_per_insert import (
    MayProceed,
    ReplayFlow,
    ReplayPace,
    WaitFor,
    check_pace,
    decide_insert,
    decide_sample,
    needed_slack,
    owed,
)

SCHEDULES = 10_000
ACTIONS_A_SCHEDULE = 50
UNLIMITED = 10**6


def pace(
    *, samples_per_insert: float = 2.0, min_fill: int = 10, slack: float = 100.0, batch_size: int = 4
) -> ReplayPace:
    return ReplayPace(
        samples_per_insert=samples_per_insert, min_fill=min_fill, slack=slack, batch_size=batch_size
    )


def flow(inserted: int, sampled: int, *, drawable: float = 1e9) -> ReplayFlow:
    return ReplayFlow(inserted=inserted, sampled=sampled, drawable=drawable)


def test_first_sample_waits_for_min_fill() -> None:
    assert isinstance(decide_sample(pace(), flow(9, 0), count=4), WaitFor)
    assert decide_sample(pace(), flow(10, 0), count=4) == MayProceed()


def test_sample_waits_for_actors_once_it_is_ahead_of_the_ratio() -> None:
    limits = pace(slack=8.0)
    assert decide_sample(limits, flow(10, 4), count=4) == MayProceed()
    decision = decide_sample(limits, flow(10, 5), count=4)
    assert isinstance(decision, WaitFor)
    assert decision.waits_for == "actors"
    assert "already 2 for each" in decision.reason


def test_insert_waits_for_the_learner_once_it_is_ahead_of_the_ratio() -> None:
    limits = pace(slack=8.0)
    assert decide_insert(limits, flow(10, 0), count=4) == MayProceed()
    decision = decide_insert(limits, flow(10, 0), count=5)
    assert isinstance(decision, WaitFor)
    assert decision.waits_for == "learner"


def test_insert_never_waits_while_there_is_too_little_to_draw() -> None:
    assert decide_insert(pace(slack=8.0), flow(1000, 0, drawable=3), count=5) == MayProceed()


def test_without_a_ratio_only_the_fill_is_waited_for() -> None:
    limits = pace(samples_per_insert=0.0, slack=0.0)
    assert decide_insert(limits, flow(10**9, 0), count=10**6) == MayProceed()
    assert decide_sample(limits, flow(10, 10**9), count=4) == MayProceed()
    assert isinstance(decide_sample(limits, flow(9, 0), count=4), WaitFor)


@given(
    ratio=st.floats(0.01, 64.0),
    batch_size=st.integers(1, 512),
    insert_units=st.integers(1, 2048),
    min_fill=st.integers(0, 4096),
    inserted=st.integers(0, 10_000),
    sampled=st.integers(0, 100_000),
)
def test_both_sides_never_wait_at_once_with_the_needed_slack(
    ratio: float, batch_size: int, insert_units: int, min_fill: int, inserted: int, sampled: int
) -> None:
    slack = needed_slack(ratio, batch_size=batch_size, insert_units=insert_units) * (1 + 1e-9) + 1e-6
    limits = pace(samples_per_insert=ratio, min_fill=min_fill, slack=slack, batch_size=batch_size)
    now = flow(inserted, sampled)
    both = decide_insert(limits, now, count=insert_units), decide_sample(limits, now, count=batch_size)
    assert not all(isinstance(decision, WaitFor) for decision in both)


def test_narrower_slack_than_needed_can_stand_still() -> None:
    slack = needed_slack(1.0, batch_size=8, insert_units=8) - 1
    limits = pace(samples_per_insert=1.0, min_fill=0, slack=slack, batch_size=8)
    now = flow(100, 100)
    assert isinstance(decide_insert(limits, now, count=8), WaitFor)
    assert isinstance(decide_sample(limits, now, count=8), WaitFor)


class Buffer:
    """A first-in first-out buffer of units that are counted and not stored: what a schedule runs against."""

    def __init__(self, limits: ReplayPace, *, capacity: int, uses_max: int, insert_units: int) -> None:
        self.limits = limits
        self.inserted = self.sampled = 0
        self._capacity = capacity
        self._uses_max = uses_max
        self._insert_units = insert_units
        # Samples left of each unit; which one goes first makes no difference to the pace.
        self._left: deque[int] = deque()
        self._drawable = 0

    def flow(self) -> ReplayFlow:
        return flow(self.inserted, self.sampled, drawable=self._drawable)

    def insert(self, count: int) -> bool:
        # The store decides by the most a trajectory may bring, which is at least what it does bring.
        if decide_insert(self.limits, self.flow(), count=self._insert_units) != MayProceed():
            return False
        self._left.extend([self._uses_max or UNLIMITED] * count)
        self._drawable += count * (self._uses_max or UNLIMITED)
        while len(self._left) > self._capacity:
            self._drawable -= self._left.popleft()
        self.inserted += count
        return True

    def sample(self, rng: random.Random) -> bool:
        if decide_sample(self.limits, self.flow(), count=self.limits.batch_size) != MayProceed():
            return False
        self._left.rotate(rng.randrange(len(self._left)))
        for _ in range(self.limits.batch_size):
            while not self._left[0]:
                self._left.rotate(1)
            self._left[0] -= 1
            self._left.rotate(1)
        self._drawable -= self.limits.batch_size
        self.sampled += self.limits.batch_size
        return True

    def forget_updates(self, count: int) -> None:
        """A restore: the last samples died."""
        self.sampled = max(0, self.sampled - count * self.limits.batch_size)


def run_schedule(seed: int) -> int:
    """One random schedule of inserts, samples and restores; returns how many of them happened."""
    rng = random.Random(seed)
    insert_units, batch_size = rng.randint(1, 12), rng.randint(1, 12)
    ratio, uses_max = rng.choice((0.0, 0.25, 0.5, 1.0, 2.0, 8.0)), rng.choice((0, 1, 2, 8))
    min_fill = rng.randint(0, 30)
    slack = needed_slack(ratio, batch_size=batch_size, insert_units=insert_units) * rng.choice(
        (1.0, 1.5, 4.0)
    )
    limits = ReplayPace(samples_per_insert=ratio, min_fill=min_fill, slack=slack, batch_size=batch_size)
    capacity = rng.randint(1, 80)
    if check_pace(
        limits, insert_units=insert_units, capacity=capacity, uses_max=uses_max, in_flight_max=1000
    ):
        return 0
    buffer = Buffer(limits, capacity=capacity, uses_max=uses_max, insert_units=insert_units)
    bias = rng.random()
    for _ in range(ACTIONS_A_SCHEDULE):
        before = buffer.flow()
        if rng.random() < 0.02:
            buffer.forget_updates(rng.randint(0, 3))
            continue
        # What the schedule prefers may have to wait; then the other side must not.
        wants_insert = rng.random() < bias
        brings = rng.randint(1, insert_units)
        happened = buffer.insert(brings) if wants_insert else buffer.sample(rng)
        if not happened:
            assert buffer.sample(rng) if wants_insert else buffer.insert(brings), f"seed {seed} is stuck"
        if ratio and buffer.sampled > before.sampled:
            assert owed(limits, buffer.flow()) >= limits.middle() - slack - 1e-9, (
                f"seed {seed}: sampled too often"
            )
            assert before.inserted >= min_fill
        if ratio and buffer.inserted > before.inserted and before.drawable >= batch_size:
            assert owed(limits, buffer.flow()) <= limits.middle() + slack + 1e-9, (
                f"seed {seed}: inserted too much"
            )
    return buffer.inserted + buffer.sampled


@pytest.mark.slow
def test_pace_is_never_exceeded_and_never_stuck_in_random_schedules() -> None:
    happened = [run_schedule(seed) for seed in range(SCHEDULES)]
    # Most settings are accepted, and in each of those something happens.
    assert sum(1 for count in happened if count) > SCHEDULES / 3


@pytest.mark.parametrize(
    ("limits", "keywords", "text"),
    [
        (pace(min_fill=100), {"capacity": 103}, "leaves no room"),
        (pace(min_fill=0, batch_size=100), {"uses_max": 2, "capacity": 49}, "more than"),
        (pace(samples_per_insert=3.0), {"uses_max": 2}, "is above"),
        (pace(slack=5.0), {}, "set trajectory_store.replay.slack to 8"),
        (pace(min_fill=100), {"in_flight_max": 24}, "needs 25 trajectories"),
    ],
)
def test_settings_that_could_only_stand_still_are_refused(
    limits: ReplayPace, keywords: dict[str, int], text: str
) -> None:
    given_ = {"insert_units": 4, "capacity": 1000, "uses_max": 0, "in_flight_max": 1000} | keywords
    error = check_pace(limits, **given_)
    assert isinstance(error, ConfigError)
    assert text in str(error)


def test_settings_that_can_go_on_are_accepted() -> None:
    assert check_pace(pace(), insert_units=4, capacity=1000, uses_max=2, in_flight_max=1000) is None
