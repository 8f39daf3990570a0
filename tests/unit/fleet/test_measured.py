"""A simulated run, recorded as a real one, is predicted again."""

import numpy as np
import pytest

from tidegate.core.errors import NotFoundError
from tidegate.core.ids import TrajectoryId
from tidegate.fleet.measured import RolloutTimes, Setup, Shares, StepTimes, measure, predict, quantiles_of

SETUP = Setup(actors=4, batch_size=4, max_lag=2, max_age_s=300, max_running=16, group_size=1)


def records(*, rollout_s: float, learn_s: float, wait_s: float) -> tuple[list[StepTimes], list[RolloutTimes]]:
    rng = np.random.default_rng(3)
    interval_s = learn_s + wait_s
    steps = [
        StepTimes(at_s=1000 + number * interval_s, samples=4, lag_mean=1.0, wait_s=wait_s, train_s=learn_s)
        for number in range(100)
    ]
    rollouts: list[RolloutTimes] = []
    for number in range(400):
        started_s = 1000 + number * interval_s / 4
        seconds = rollout_s * float(rng.uniform(0.8, 1.2))
        rollouts.append(
            RolloutTimes(
                trajectory_id=TrajectoryId(f"t{number:010d}.0"),
                num_steps=64,
                started_at_s=started_s,
                finished_at_s=started_s + seconds,
                accepted_at_s=started_s + seconds + 0.002,
            )
        )
    return steps, rollouts


def test_measured_times_are_those_of_the_records() -> None:
    steps, rollouts = records(rollout_s=0.2, learn_s=0.05, wait_s=0.0)
    measured = measure(SETUP, steps=steps, rollouts=rollouts, shares=Shares(pull_ms=3))
    assert measured.rollout_s == pytest.approx(0.2, rel=0.02)
    assert measured.learn_s == pytest.approx(0.05, rel=0.02)
    assert measured.hop_s == pytest.approx(0.002, rel=0.02)
    assert measured.plan.pull_s == 0.003
    assert measured.samples_per_s == pytest.approx(4 / 0.05)
    assert measured.steps_per_trajectory == 64


def test_rate_of_a_run_bound_by_its_actors_is_predicted() -> None:
    # Four actors, 0.2 s each: 20 a second, which is a batch every 0.2 s.
    steps, rollouts = records(rollout_s=0.2, learn_s=0.05, wait_s=0.15)
    prediction = predict(measure(SETUP, steps=steps, rollouts=rollouts, shares=Shares()), horizon_s=100)
    assert prediction.measured_per_s == pytest.approx(20)
    assert prediction.predicted_per_s == pytest.approx(20, rel=0.05)
    assert abs(prediction.error) < 0.05


def test_what_actors_do_beside_rollouts_makes_them_slower() -> None:
    steps, rollouts = records(rollout_s=0.2, learn_s=0.05, wait_s=0.15)
    measured = measure(SETUP, steps=steps, rollouts=rollouts, shares=Shares(busy=0.6, waiting=0.2))
    assert measured.rollout_s == pytest.approx(0.2 * 0.8 / 0.6, rel=0.02)


def test_group_takes_as_long_as_its_longest_sample() -> None:
    steps, _ = records(rollout_s=0.2, learn_s=0.05, wait_s=0.15)
    rollouts = [
        RolloutTimes(TrajectoryId(f"t{number}.{sample}"), 4, 1010.0, 1010.0 + 0.1 * (1 + sample), 1011.0)
        for number in range(50)
        for sample in range(2)
    ]
    measured = measure(SETUP, steps=steps, rollouts=rollouts, shares=Shares())
    assert measured.rollout_s == pytest.approx(0.2)


def test_short_run_has_no_rate() -> None:
    steps, rollouts = records(rollout_s=0.2, learn_s=0.05, wait_s=0.0)
    with pytest.raises(NotFoundError):
        measure(SETUP, steps=steps[:5], rollouts=rollouts, shares=Shares())


def test_histogram_keeps_mean_and_tail() -> None:
    drawn = np.random.default_rng(1).lognormal(0, 1, 3000)
    duration = quantiles_of(drawn.tolist())
    assert duration.mean_s == pytest.approx(float(drawn.mean()), rel=1e-6)
