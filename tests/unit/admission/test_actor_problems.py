"""Problems of actors outlive the actor that reported them."""

import math

from tidegate.admission.actor_problems import ACTORS_MAX, RECENT_S, SHOWN_MAX, ActorProblems
from tidegate.catalogue import actor as actor_stats
from tidegate.wire.stats import ServiceStats

HUNG = "Copy 3 of 'My-v0' does not return from step: 30 s, in step 17 of the segment of task t1"


def report(
    index: int, *, fault: str = "", call: str = "", refusal: str = "", stuck_s: float = 0.0
) -> ServiceStats:
    return ServiceStats(
        service="actor",
        instance=f"actor-{index}",
        state="ready",
        at_s=0.0,
        started_at_s=0.0,
        values={actor_stats.ENVIRONMENT_CALL_S: stuck_s},
        labels={
            actor_stats.ENVIRONMENT_FAULT: fault,
            actor_stats.ENVIRONMENT_CALL: call,
            actor_stats.TASK_REFUSAL: refusal,
        },
    )


def test_cause_stays_when_the_next_actor_reports_under_the_same_name() -> None:
    problems = ActorProblems()
    problems.receive(report(1, call=HUNG, stuck_s=12.0), now_s=100.0)
    assert problems.num_stuck(now_s=100.0, silent_after_s=3.0) == 1
    assert problems.newest(now_s=100.0) == f"actor-1: {HUNG}"
    problems.receive(report(1), now_s=110.0)
    assert problems.num_stuck(now_s=110.0, silent_after_s=3.0) == 0
    totals = {"environment_faults.hung_total": 1.0, "environment_faults.not_finite_total": 20.0}
    assert problems.sentences(totals, now_s=112.0) == [
        "faults of environments: 20 not finite, 1 hung",
        f"actor-1, 12 s ago: {HUNG}",
    ]


def test_actor_that_fell_silent_is_not_stuck_and_an_old_problem_explains_nothing() -> None:
    problems = ActorProblems()
    problems.receive(report(1, call=HUNG, stuck_s=12.0), now_s=100.0)
    assert problems.num_stuck(now_s=104.0, silent_after_s=3.0) == 0
    assert problems.newest(now_s=100.0 + RECENT_S + 1.0) == ""
    assert problems.sentences({}, now_s=1_000.0) == [f"actor-1, 900 s ago: {HUNG}"]


def test_newest_problems_come_first_and_their_number_is_bounded() -> None:
    problems = ActorProblems()
    for index in range(2 * ACTORS_MAX):
        problems.receive(report(index, fault=f"fault {index}"), now_s=float(index))
    problems.receive(report(2 * ACTORS_MAX - 3, refusal="it refuses"), now_s=500.0)
    shown = problems.sentences({}, now_s=500.0)
    assert len(shown) == SHOWN_MAX
    assert shown[0] == f"actor-{2 * ACTORS_MAX - 3}, 0 s ago: it refuses"
    assert shown[1].endswith(f"fault {2 * ACTORS_MAX - 1}")


def test_reports_of_other_services_and_healthy_actors_are_no_problem() -> None:
    problems = ActorProblems()
    problems.receive(report(0), now_s=1.0)
    problems.receive(ServiceStats("learner", "learner", "ready", 0.0, 0.0), now_s=1.0)
    assert problems.sentences({}, now_s=1.0) == []
    assert problems.newest(now_s=1.0) == ""


def test_actors_that_ended_stuck_are_not_kept() -> None:
    problems = ActorProblems()
    for index in range(1000):
        problems.receive(report(index, stuck_s=12.0), now_s=float(index))
    assert problems.num_stuck(now_s=999.0, silent_after_s=3.0) == 4
    assert problems.num_stuck(now_s=999.0, silent_after_s=math.inf) == RECENT_S + 1
