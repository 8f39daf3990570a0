"""Failures of a curriculum as one sentence."""

from tidegate.admission.curriculum_problem import CurriculumProblem
from tidegate.catalogue import task_queue as task_queue_stats
from tidegate.wire.stats import ServiceStats


def report(service: str, reason: str) -> ServiceStats:
    labels = {str(task_queue_stats.CURRICULUM_FAILURE): reason} if reason else {}
    return ServiceStats(service, "any-0", "ready", 1.0, 0.0, {}, labels)


def test_number_and_reason_are_told_also_after_the_queue_that_reported_it() -> None:
    problem = CurriculumProblem()
    problem.receive(report("task_queue", "TypeError at my_curriculum.py:3 in weights: no"))
    problem.receive(report("actor", "other"))
    problem.receive(report("task_queue", ""))
    sentence = problem.sentence({task_queue_stats.CURRICULUM_FAILURES: 1_200.0})
    assert sentence.startswith(
        "the curriculum failed 1,200 times, last TypeError at my_curriculum.py:3 in weights: no;"
    )
    assert "`learnable`" in sentence


def test_nothing_is_said_without_a_failure() -> None:
    assert CurriculumProblem().sentence({task_queue_stats.CURRICULUM_FAILURES: 0.0}) == ""
    assert CurriculumProblem().sentence({}) == ""
