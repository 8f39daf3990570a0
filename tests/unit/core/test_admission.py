"""The capacity law against a small model in which a learner trains the admitted work."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.admission import Admit, Delay, Flow, Limits, capacity, decide_admission, required_version
from tidegate.core.ids import LineageName, PolicyVersion

LINEAGE = LineageName("0-x")


@st.composite
def runs(draw: st.DrawFn) -> tuple[Limits, int]:
    """Limits of a run and its group size: batches and concurrency in whole groups."""
    group_size = draw(st.integers(1, 4))
    limits = Limits(
        max_lag=draw(st.integers(0, 5)),
        batch_size=draw(st.integers(1, 4)) * group_size,
        max_running=draw(st.integers(1, 12)) * group_size,
    )
    return limits, group_size


@given(runs(), st.integers(0, 200), st.integers(0, 200), st.integers(0, 50))
def test_admitting_the_capacity_exceeds_neither_bound(
    case: tuple[Limits, int], running: int, stored: int, unannounced: int
) -> None:
    limits, group_size = case
    flow = Flow(running=running, in_flight=running + stored, unannounced=unannounced)
    free = capacity(limits, flow)
    assert free >= 0
    if free:
        assert flow.running + free <= limits.max_running
        assert flow.in_flight + flow.unannounced + free <= limits.max_in_flight()
    decision = decide_admission(limits, flow, group_size=group_size)
    if isinstance(decision, Admit):
        assert 0 < decision.count <= free
        assert decision.count % group_size == 0
        assert decision.count + group_size > free
    else:
        assert free < group_size


@given(
    st.integers(0, 8),
    st.integers(1, 16),
    st.integers(0, 64),
    st.integers(0, 50),
    st.integers(0, 64),
    st.integers(0, 64),
)
def test_law_is_areals_once_every_update_is_announced(
    max_lag: int, batch_size: int, max_running: int, step: int, running: int, stored: int
) -> None:
    """AReaL counts all accepted trajectories: v * B trained, and those that wait in the store."""
    accepted = step * batch_size + stored
    areal = min(max_running - running, (max_lag + step + 1) * batch_size - accepted - running)
    limits = Limits(max_lag=max_lag, batch_size=batch_size, max_running=max_running)
    assert capacity(limits, Flow(running=running, in_flight=running + stored)) == max(0, areal)


def test_paused_admission_says_why() -> None:
    limits = Limits(max_lag=4, batch_size=8, max_running=64, paused=True, reason="maintenance")
    assert decide_admission(limits, Flow(0, 0), group_size=1) == Delay(reason="maintenance")


def test_delay_names_the_bound_that_holds() -> None:
    limits = Limits(max_lag=0, batch_size=8, max_running=4)
    concurrency = decide_admission(limits, Flow(running=4, in_flight=4), group_size=1)
    budget = decide_admission(limits, Flow(running=0, in_flight=8), group_size=1)
    assert isinstance(concurrency, Delay)
    assert "concurrency" in concurrency.reason
    assert isinstance(budget, Delay)
    assert "staleness" in budget.reason


class World:
    """A perfect loop: rollouts end in order, the learner trains B of them, commits, and announces later."""

    def __init__(self, limits: Limits, group_size: int) -> None:
        self.limits = limits
        self.group_size = group_size
        self.head: int = 0
        self.learner: int = 0
        self.queued: deque[int] = deque()  # the required step of each
        self.stored: deque[int] = deque()  # the step it was generated under
        self.unannounced = 0
        self.lags: list[int] = []

    def admit(self) -> None:
        flow = Flow(len(self.queued), len(self.queued) + len(self.stored), self.unannounced)
        decision = decide_admission(self.limits, flow, group_size=self.group_size)
        if isinstance(decision, Admit):
            ahead = flow.in_flight + flow.unannounced
            for position in range(ahead, ahead + decision.count):
                required = required_version(
                    self.limits, head=PolicyVersion(LINEAGE, self.head), position=position
                )
                assert required.step <= self.head, "a task must not require an unpublished version"
                self.queued.append(required.step)

    def roll_out(self) -> None:
        """By the actor with the oldest policy that the task allows."""
        if self.queued:
            self.stored.append(self.queued.popleft())

    def train(self) -> None:
        """A learner announces an update before it starts the next one."""
        if len(self.stored) >= self.limits.batch_size and self.learner == self.head:
            batch = [self.stored.popleft() for _ in range(self.limits.batch_size)]
            self.lags += [self.learner - step for step in batch]
            self.learner += 1
            self.unannounced += len(batch)

    def announce(self) -> None:
        if self.head < self.learner:
            self.head, self.unannounced = self.learner, 0

    def run(self, moves: list[str]) -> None:
        for move in moves:
            {"admit": self.admit, "roll_out": self.roll_out, "train": self.train, "announce": self.announce}[
                move
            ]()


@given(runs(), st.lists(st.sampled_from(["admit", "roll_out", "train", "announce"]), max_size=300))
def test_pacing_alone_keeps_in_order_rollouts_inside_the_budget(
    case: tuple[Limits, int], moves: list[str]
) -> None:
    """With rollouts that end in order nothing is ever dropped, even if each starts under the oldest policy allowed."""
    world = World(*case)
    world.run(moves)
    assert max(world.lags, default=0) <= world.limits.max_lag


@given(runs())
def test_loop_never_waits_for_itself(case: tuple[Limits, int]) -> None:
    world = World(*case)
    for _ in range(5):
        for _ in range(world.limits.batch_size):
            world.admit()
            for _ in range(world.limits.batch_size):
                world.roll_out()
        world.train()
        world.announce()
    assert world.head == 5


def test_batch_between_commit_and_announcement_still_counts() -> None:
    """At max_lag 0 a task admitted then would start under the version before and be dropped."""
    limits = Limits(max_lag=0, batch_size=8, max_running=64)
    committed = Flow(running=0, in_flight=0, unannounced=8)
    assert isinstance(decide_admission(limits, committed, group_size=1), Delay)
    assert decide_admission(limits, Flow(0, 0), group_size=1) == Admit(count=8)


@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 100), st.integers(0, 100))
def test_required_version_rises_with_the_position(
    max_lag: int, batch_size: int, step: int, position: int
) -> None:
    limits = Limits(max_lag=max_lag, batch_size=batch_size, max_running=10**6)
    head = PolicyVersion(LINEAGE, step)
    here = required_version(limits, head=head, position=position)
    later = required_version(limits, head=head, position=position + batch_size)
    assert here.lineage == head.lineage
    assert later.step == max(0, here.step + 1) or here.step == 0
    if position < limits.max_in_flight():
        assert max(0, step - max_lag) <= here.step <= step


class UnevenWorld:
    """Rollouts of any duration, some of which fail; the oldest version is trained first and announced at once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.step = 0
        self.admitted = 0
        # Number and version of each rollout, as in the journal: in order of admission.
        self.running: dict[int, int] = {}
        self.stored: list[tuple[int, int]] = []
        self.lags: list[int] = []

    def flow(self) -> Flow:
        return Flow(
            running=len(self.running),
            in_flight=len(self.running) + len(self.stored),
            behind=self.step - min(self.running.values(), default=self.step),
        )

    def admit(self) -> bool:
        decision = decide_admission(self.limits, self.flow(), group_size=1)
        if not isinstance(decision, Admit):
            return False
        # Started at once, under the newest policy, which satisfies every requirement.
        head = PolicyVersion(LINEAGE, self.step)
        assert required_version(self.limits, head=head, position=self.flow().in_flight).step <= self.step
        self.running[self.admitted] = self.step
        self.admitted += 1
        return True

    def finish(self, number: int) -> None:
        self.stored.append((number, self.running.pop(number)))
        self.stored.sort(key=lambda each: (each[1], each[0]))
        if len(self.stored) >= self.limits.batch_size:
            batch = self.stored[: self.limits.batch_size]
            self.stored = self.stored[self.limits.batch_size :]
            self.lags += [self.step - version for _, version in batch]
            self.step += 1


@given(runs(), st.data())
def test_paced_admission_lets_nothing_be_overtaken_beyond_the_budget(
    case: tuple[Limits, int], data: st.DataObject
) -> None:
    limits = Limits(max_lag=case[0].max_lag, batch_size=case[0].batch_size, max_running=64, paced=True)
    world = UnevenWorld(limits)
    for _ in range(40):
        while world.admit():
            pass
        assert world.running, "some rollout can always end"
        # Any of them: the oldest may end last.
        chosen = sorted(world.running)[data.draw(st.integers(0, len(world.running) - 1))]
        if data.draw(st.integers(0, 9)) == 0:
            del world.running[chosen]
        else:
            world.finish(chosen)
    assert max(world.lags, default=0) <= limits.max_lag


def test_without_pacing_a_slow_rollout_is_overtaken_beyond_the_budget() -> None:
    world = UnevenWorld(Limits(max_lag=1, batch_size=2, max_running=64))
    world.admit()
    for _ in range(12):
        while world.admit():
            pass
        world.finish(max(world.running))
    world.finish(0)
    world.finish(max(world.running))
    assert max(world.lags) > 1


def test_paced_wait_names_the_rollout_it_waits_for() -> None:
    limits = Limits(max_lag=0, batch_size=4, max_running=64, paced=True)
    waiting = decide_admission(limits, Flow(running=1, in_flight=1, behind=1), group_size=1)
    assert isinstance(waiting, Delay)
    assert "oldest rollout" in waiting.reason
