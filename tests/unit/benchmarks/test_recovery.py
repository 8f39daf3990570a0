"""Recoveries from kills, as read from a run's steps."""

from pathlib import Path

import pytest

from benchmarks.recovery import Kill, new_steps, percentile, recoveries, service_of, steps_between
from benchmarks.steps_file import StepPoint, StepsFile


def at(*moments: tuple[int, float]) -> list[StepPoint]:
    return [
        StepPoint(step=step, at_s=at_s, env_steps=0, lag_mean=0.0, lag_max=0, mean_return=None)
        for step, at_s in moments
    ]


def kill(at_s: float) -> Kill:
    return Kill(at_s=at_s, victim="learner", back_s=0.5)


def test_steps_that_are_made_again_after_a_restore_are_not_new() -> None:
    points = at((0, 1.0), (1, 2.0), (2, 3.0), (1, 5.0), (2, 6.0), (3, 7.0))
    assert [(point.step, point.at_s) for point in new_steps(points)] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
        (3, 7.0),
    ]
    assert steps_between(points, 2.0, 7.0) == 2


def test_recovery_counts_to_the_next_new_step() -> None:
    points = at((0, 1.0), (1, 2.0), (1, 4.0), (2, 6.0), (3, 9.0))
    (found,) = recoveries([kill(2.5)], points, end_s=10.0)
    assert found.next_step_s == 3.5
    assert found.longest_pause_s == 3.5


def test_longest_pause_of_a_kill_ends_at_the_next_kill() -> None:
    points = at((0, 1.0), (1, 2.0), (2, 3.5), (3, 9.0))
    first, second = recoveries([kill(1.5), kill(4.0)], points, end_s=10.0)
    assert (first.next_step_s, first.longest_pause_s) == (0.5, 1.5)
    assert (second.next_step_s, second.longest_pause_s) == (5.0, 5.0)


def test_run_without_another_step_has_not_recovered_until_its_end() -> None:
    (found,) = recoveries([kill(2.0)], at((0, 1.0)), end_s=12.0)
    assert (found.next_step_s, found.longest_pause_s) == (10.0, 10.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 6.0), (0.95, 10.0), (1.0, 10.0)])
def test_percentile_is_the_nearest_rank(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(10, 0, -1)], share) == value


@pytest.mark.parametrize(
    ("instance", "service"),
    [("actor-0", "actor"), ("actor-12", "actor"), ("nats-server", "nats-server"), ("learner", "learner")],
)
def test_instance_is_counted_for_its_service(instance: str, service: str) -> None:
    assert service_of(instance) == service


def test_line_that_a_kill_cut_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    line = '{"step":%d,"at_s":1.0,"env_steps":0,"lag_mean":0.0,"lag_max":0,"mean_return":null}\n'
    path.write_text(line % 0 + '{"step":1,"at_s\n' + line % 1)
    assert [point.step for point in StepsFile(path).read()] == [0, 1]
