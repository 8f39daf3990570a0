from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.admission import Admit, Delay, Limits
from tidegate.core.errors import ConfigError
from tidegate.core.ids import LineageName, PolicyVersion, PromptId, RunId, position_of, task_id, trajectory_at
from tidegate.core.records import Sampler
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.task_queue.state import (
    AdmittedUnder,
    Counts,
    Deliveries,
    Prompt,
    Snapshot,
    TrajectoryState,
    Workload,
    check_limits,
    decide,
    effective_limits,
    evaluation_due,
    is_announced,
    lost_before,
    plan_tasks,
    state_after,
    task_seed,
    was_starved,
    without_announced,
)

OUTCOMES = ("accepted", "available", "trained", "dropped")
OLD, NEW = LineageName("0-a"), LineageName("1-b")
TREE = LineageTree().add(Lineage(OLD)).add(Lineage(NEW, parent=OLD, fork_step=4))
LIMITS = Limits(max_lag=1, batch_size=4, max_running=64)
GROUPS = Workload(
    run_id=RunId("r"),
    kind="group",
    env_id="arithmetic",
    group_size=2,
    unroll_length=0,
    sampler=Sampler(),
    seed=1,
)


def at(step: int, lineage: LineageName = OLD) -> PolicyVersion:
    return PolicyVersion(lineage, step)


@given(st.lists(st.sampled_from([*OUTCOMES, "leased", ""]), max_size=30))
def test_trajectory_is_where_its_last_known_outcome_says(outcomes: list[str]) -> None:
    state = TrajectoryState.ADMITTED
    for outcome in outcomes:
        assert state_after(state_after(state, outcome), outcome) == state_after(state, outcome)
        state = state_after(state, outcome)
    known = [outcome for outcome in outcomes if outcome in OUTCOMES]
    last = known[-1] if known else "admitted"
    assert state.name.lower() == {"available": "accepted"}.get(last, last)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(OUTCOMES)), max_size=60))
def test_counts_follow_every_transition(events: list[tuple[int, str]]) -> None:
    states = dict.fromkeys(range(10), TrajectoryState.ADMITTED)
    counts = Counts().admit(10)
    for number, outcome in events:
        after = state_after(states[number], outcome)
        counts = counts.move(states[number], after)
        states[number] = after
    tally = Counter(states.values())
    assert counts == Counts(*(tally[state] for state in TrajectoryState))
    assert counts.admitted == 10
    assert counts.in_flight == tally[TrajectoryState.ADMITTED] + tally[TrajectoryState.ACCEPTED]


@given(st.integers(1, 10**12), st.integers(0, 10**6))
def test_id_names_its_place_and_sorts_by_it(seq: int, sample_index: int) -> None:
    assert position_of(trajectory_at(seq, sample_index)) == (seq, sample_index)
    assert task_id(seq) < task_id(seq + 1) or len(task_id(seq)) < len(task_id(seq + 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t1",
        "x1.0",
        "t.0",
        "t1.",
        "t-1.0",
        "t1.-1",
        "e-0-a-7.0",
        "t1.0",
        "t0000000001.00",
        "t000000000².0",
        "t000000000٣.0",
    ],
)
def test_id_this_queue_never_made_has_no_place(text: str) -> None:
    assert position_of(text) is None


def test_updates_up_to_the_head_are_announced_and_a_branch_the_tree_does_not_know_is_not() -> None:
    assert is_announced(at(6), head=at(7), tree=TREE)
    assert not is_announced(at(7), head=at(7), tree=TREE)
    assert is_announced(at(9), head=at(5, NEW), tree=TREE), (
        "the branch died: what it trained is history or revived"
    )
    assert not is_announced(at(9, LineageName("2-c")), head=at(5, NEW), tree=TREE), (
        "news of a newer branch came first"
    )
    left = without_announced({at(6): 4, at(7): 4, at(8): 2}, head=at(7), tree=TREE)
    assert left == {at(7): 4, at(8): 2}


def test_decision_names_what_must_end_first() -> None:
    ready = Snapshot(limits=LIMITS, counts=Counts(), head=at(3), tree=TREE)
    assert decide(ready, group_size=2) == Admit(count=8)
    for changed, reason in (
        ({"retired": True}, "retired"),
        ({"unpublished_tasks": 1}, "TASKS"),
        ({"head": None}, "first version"),
        ({"counts": Counts(accepted=8)}, "staleness budget"),
        ({"counts": Counts(accepted=4), "trained_at": {at(3): 4}}, "staleness budget"),
    ):
        decision = decide(
            Snapshot(**{"limits": LIMITS, "counts": Counts(), "head": at(3), "tree": TREE, **changed}),  # pyright: ignore[reportArgumentType]  # one field at a time
            group_size=2,
        )
        assert isinstance(decision, Delay)
        assert reason in decision.reason


def test_batch_that_is_committed_and_not_announced_is_freed_by_its_announcement() -> None:
    before = Snapshot(limits=LIMITS, counts=Counts(trained=4), trained_at={at(3): 4}, head=at(3), tree=TREE)
    after = Snapshot(limits=LIMITS, counts=Counts(trained=4), trained_at={at(3): 4}, head=at(4), tree=TREE)
    assert decide(before, group_size=2) == Admit(count=4)
    assert decide(after, group_size=2) == Admit(count=8)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(-5, 40), st.integers(-5, 40), st.booleans())
def test_published_limits_only_ever_narrow_the_run_file(
    max_lag: int, groups: int, published_lag: int, published_running: int, paused: bool
) -> None:
    ceiling = Limits(max_lag=max_lag, batch_size=4, max_running=groups)
    published = Limits(
        max_lag=published_lag, batch_size=99, max_running=published_running, paused=paused, reason="r"
    )
    limits = effective_limits(ceiling, published)
    assert 0 <= limits.max_lag <= ceiling.max_lag
    assert 0 <= limits.max_running <= ceiling.max_running
    assert limits.batch_size == 4
    assert (limits.paused, limits.reason) == (paused, "r")
    assert effective_limits(ceiling, limits) == limits
    assert effective_limits(ceiling, None) == ceiling


def test_settings_under_which_the_loop_would_wait_for_itself_are_refused() -> None:
    check_limits(Limits(max_lag=0, batch_size=8, max_running=8), group_size=8)
    with pytest.raises(ConfigError, match="set batch_size to 8"):
        check_limits(Limits(max_lag=0, batch_size=12, max_running=64), group_size=8)
    with pytest.raises(ConfigError, match="set max_running to at least 8"):
        check_limits(Limits(max_lag=0, batch_size=8, max_running=7), group_size=8)


def test_tasks_continue_the_numbering_and_ask_for_what_their_last_sample_needs() -> None:
    snapshot = Snapshot(limits=LIMITS, counts=Counts(running=1, accepted=1), head=at(9), tree=TREE)
    prompts = [Prompt(PromptId(f"p{number}"), f"{number}+1=", str(number + 1), "easy") for number in range(3)]
    tasks = plan_tasks(
        snapshot, GROUPS, first_seq=41, prompts=prompts, trace_parents=["a", "b", "c"], now_s=5.0
    )
    assert [task.task_id for task in tasks] == [task_id(41), task_id(42), task_id(43)]
    # Positions of the last samples are 3, 5 and 7: of the batch being filled, then of the one after.
    assert [task.required_version.step for task in tasks] == [8, 9, 9]
    assert [(task.prompt_id, task.answer, task.curriculum_bin) for task in tasks] == [
        ("p0", "1", "easy"),
        ("p1", "2", "easy"),
        ("p2", "3", "easy"),
    ]
    assert {(task.kind, task.num_samples, task.attempt, task.admitted_at_s) for task in tasks} == {
        ("group", 2, 1, 5.0)
    }
    assert [task.trace_parent for task in tasks] == ["a", "b", "c"]
    assert len({task.seed for task in tasks}) == 3


def test_task_is_of_its_prompt_s_environment_and_else_of_the_run_s() -> None:
    snapshot = Snapshot(limits=LIMITS, counts=Counts(), head=at(9), tree=TREE)
    prompts = [Prompt(PromptId("p"), bin="mine/all", env="mine"), Prompt(PromptId("q"))]
    tasks = plan_tasks(snapshot, GROUPS, first_seq=1, prompts=prompts, trace_parents=["", ""], now_s=5.0)
    assert [(task.env_id, task.curriculum_bin) for task in tasks] == [
        ("mine", "mine/all"),
        (GROUPS.env_id, "all"),
    ]


def test_task_seed_depends_on_run_and_number_alone_and_fits_a_signed_word() -> None:
    assert task_seed(1, 7) == task_seed(1, 7) != task_seed(2, 7)
    assert all(0 <= task_seed(3, seq) < 2**63 for seq in range(100))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 5)), max_size=30),
    st.floats(1, 40),
    st.integers(0, 50),
)
def test_task_is_lost_a_deadline_after_it_was_first_known_to_be_delivered(
    looks: list[tuple[int, float]], deadline_s: float, oldest_open: int
) -> None:
    """Against the plain history: for each task, the first look that covered it."""
    deliveries, history, now_s = Deliveries(), list[tuple[int, float]](), 0.0
    for seq, pause_s in looks:
        now_s += pause_s
        deliveries = deliveries.note(seq, at_s=now_s).forget_before(oldest_open)
        history.append((seq, now_s))
    before_seq = lost_before(deliveries, reachable_since_s=-1e9, deadline_s=deadline_s, now_s=now_s)
    for task in range(oldest_open, 60):
        delivered_at_s = min((at_s for seq, at_s in history if seq >= task), default=None)
        lost = delivered_at_s is not None and now_s - delivered_at_s >= deadline_s
        assert (task < before_seq) == lost


def test_task_that_nobody_took_is_never_lost() -> None:
    deliveries = Deliveries().note(3, at_s=0.0)
    assert lost_before(deliveries, reachable_since_s=0.0, deadline_s=10.0, now_s=1e9) == 4
    assert lost_before(Deliveries(), reachable_since_s=0.0, deadline_s=10.0, now_s=1e9) == 0


def test_deadline_restarts_when_the_store_comes_back() -> None:
    deliveries = Deliveries().note(3, at_s=0.0)
    assert lost_before(deliveries, reachable_since_s=95.0, deadline_s=10.0, now_s=100.0) == 0
    assert lost_before(deliveries, reachable_since_s=90.0, deadline_s=10.0, now_s=100.0) == 4


def test_actor_was_starved_only_if_it_waited_the_whole_time() -> None:
    assert was_starved(waited_s=0.5, elapsed_s=0.5)
    assert was_starved(waited_s=5.0, elapsed_s=0.5), "a wait is reported when it ends"
    assert not was_starved(waited_s=0.3, elapsed_s=0.5)
    assert not was_starved(waited_s=0.0, elapsed_s=0.0)


def test_evaluation_is_due_at_the_first_version_and_once_a_multiple() -> None:
    due: list[int] = []
    last: PolicyVersion | None = None
    for step in range(25):
        if evaluation_due(at(step), last=last, every_versions=10):
            due.append(step)
            last = at(step)
    assert due == [0, 10, 20]
    assert evaluation_due(at(23), last=at(9), every_versions=10), "versions may pass unseen"
    assert evaluation_due(at(11, NEW), last=at(27), every_versions=10), "a restore goes back"
    assert not evaluation_due(at(10), last=None, every_versions=0)


def test_versions_behind_are_counted_from_the_oldest_running_task() -> None:
    known = AdmittedUnder().note(1, step=0).note(4, step=0).note(5, step=2).note(9, step=3)
    assert known.behind(1, head=at(3)) == 3
    assert known.behind(5, head=at(3)) == 1
    assert known.behind(8, head=at(7)) == 5
    assert known.behind(12, head=at(3)) == 0
    later = known.since(8)
    assert later.seqs == (5, 9)
    assert later.behind(8, head=at(7)) == 5


def test_what_a_former_life_admitted_counts_from_this_one() -> None:
    assert AdmittedUnder().behind(3, head=at(50)) == 0
    assert AdmittedUnder().note(10, step=50).behind(3, head=at(52)) == 2


def test_a_restored_learner_puts_nothing_ahead_of_itself() -> None:
    assert AdmittedUnder().note(1, step=50).behind(1, head=at(40)) == 0
