"""How a run in a cluster ends: the stages, and what is scaled at each."""

import msgspec

from tidegate.core.completion import (
    BACKUP_S_MAX,
    FINISH_S_MAX,
    QUIET_S,
    LoopState,
    RunEnd,
    advance,
    is_empty,
    waits_for_backup,
    wanted_replicas,
)
from tidegate.core.pauses import explanation, way_out
from tidegate.core.targets import parse_target

UNTIL = parse_target("version_step>=20 and mean_return>=100")
REACHED = {"version_step": 20.0, "mean_return": 120.0}
QUIET = LoopState(running=0, step=20.0, updating=False)
DONE = RunEnd(target=str(UNTIL), reached_at_s=1.0, step=20.0, checkpointed=True)


def test_a_run_without_a_target_and_one_that_has_not_met_it_work_on() -> None:
    assert advance(RunEnd(), [], REACHED, QUIET, now_s=1.0) == RunEnd()
    before = advance(RunEnd(), [UNTIL], {"version_step": 20.0}, QUIET, now_s=1.0)
    assert before == RunEnd()
    assert before.reason() == ""


def test_the_target_is_kept_although_its_statistics_fall_below_it_again() -> None:
    state = advance(RunEnd(), [UNTIL], REACHED, QUIET, now_s=1.0)
    assert state.reason() == f"the run is complete: {UNTIL} holds"
    assert advance(state, [UNTIL], {}, QUIET, now_s=2.0).target == str(UNTIL)


def test_the_last_checkpoint_waits_until_the_loop_ran_empty() -> None:
    state = advance(RunEnd(), [UNTIL], REACHED, QUIET, now_s=0.0)
    now_s = 0.0
    for loop in (
        LoopState(running=4, step=20.0, updating=False),
        LoopState(running=0, step=20.0, updating=True),
        LoopState(running=0, step=21.0, updating=False),
        LoopState(running=None, step=21.0, updating=False),
        LoopState(running=0, step=None, updating=False),
    ):
        now_s += QUIET_S
        state = advance(state, [UNTIL], REACHED, loop, now_s=now_s)
        assert not is_empty(state, now_s=now_s + QUIET_S / 2)
    assert is_empty(state, now_s=now_s + QUIET_S)
    assert not is_empty(msgspec.structs.replace(state, checkpointed=True), now_s=now_s + QUIET_S)


def test_a_clock_that_is_set_back_delays_the_end_by_no_more_than_the_quiet_time() -> None:
    state = advance(RunEnd(), [UNTIL], REACHED, QUIET, now_s=7200.0)
    state = advance(state, [UNTIL], REACHED, QUIET, now_s=7200.5)
    for now_s in (3600.0, 3600.0 + QUIET_S):
        state = advance(state, [UNTIL], REACHED, QUIET, now_s=now_s)
    assert is_empty(state, now_s=3600.0 + QUIET_S)


def test_work_that_never_ends_delays_the_end_for_a_bounded_time() -> None:
    state = advance(RunEnd(), [UNTIL], REACHED, QUIET, now_s=0.0)
    state = advance(state, [UNTIL], REACHED, LoopState(1, 20.0, updating=False), now_s=FINISH_S_MAX)
    assert is_empty(state, now_s=FINISH_S_MAX)


def test_actors_end_before_the_learner_and_nothing_ends_before_the_checkpoint() -> None:
    found = {"t-actor": 3, "t-actor-spot": 0, "t-learner": 1}
    waiting = msgspec.structs.replace(DONE, checkpointed=False)
    assert wanted_replicas(waiting, found, last=["t-learner"]) == {}
    assert wanted_replicas(DONE, found, last=["t-learner"]) == {"t-actor": 0}
    assert wanted_replicas(DONE, found | {"t-actor": 0}, last=["t-learner"]) == {"t-learner": 0}
    assert wanted_replicas(DONE, {"t-actor": 0, "t-learner": 0}, last=["t-learner"]) == {}


def test_the_learner_stays_for_the_last_backup_and_not_for_ever() -> None:
    found = {"t-actor": 3, "t-learner": 1}
    assert wanted_replicas(DONE, found, last=["t-learner"], keeps_last=True) == {"t-actor": 0}
    assert wanted_replicas(DONE, found | {"t-actor": 0}, last=["t-learner"], keeps_last=True) == {}
    at_s = 7200.0
    done = msgspec.structs.replace(DONE, checkpointed_at_s=at_s)
    assert waits_for_backup(done, is_due=True, now_s=at_s + BACKUP_S_MAX / 2)
    assert not waits_for_backup(done, is_due=False, now_s=at_s + 1.0)
    assert not waits_for_backup(done, is_due=True, now_s=at_s + BACKUP_S_MAX)
    assert not waits_for_backup(done, is_due=True, now_s=at_s - 3600.0), "a clock that was set back"


def test_another_target_restores_what_was_scaled_to_zero_and_no_number_set_since() -> None:
    state = msgspec.structs.replace(DONE, replicas={"t-actor": 3, "t-learner": 1})
    further = parse_target("version_step>=40")
    for targets in ([], [further]):
        again = advance(state, targets, REACHED, QUIET, now_s=5.0)
        assert again == RunEnd(replicas=state.replicas)
        assert wanted_replicas(again, {"t-actor": 0, "t-learner": 0}, last=["t-learner"]) == state.replicas
        assert wanted_replicas(again, {"t-actor": 7, "t-learner": 1}, last=["t-learner"]) == {}


def test_a_target_that_holds_already_ends_the_run_again_and_remembers_the_numbers() -> None:
    state = msgspec.structs.replace(DONE, replicas={"t-actor": 3})
    lower = parse_target("version_step>=10")
    again = advance(state, [lower], REACHED, QUIET, now_s=5.0)
    assert (again.target, again.checkpointed, again.replicas) == (str(lower), False, {"t-actor": 3})


def test_a_complete_run_says_what_goes_on_with_it() -> None:
    assert explanation(DONE.reason()) == f"The run is complete: {UNTIL} holds."
    assert "`until`" in way_out(DONE.reason())
