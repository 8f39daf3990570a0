"""The phase that the live view and `tidegate status` name."""

import pytest

from tidegate.catalogue import learner as learner_stats
from tidegate.launch.live_run import phase_without_update


@pytest.mark.parametrize(
    ("values", "phase"),
    [
        ({}, "waiting for the first batch"),
        ({learner_stats.WARMUP_STEPS: 9.0}, "warming up, 9 steps"),
        (
            {learner_stats.WARMUP_STEPS: 10.0, learner_stats.WARMUP_SOLVED_SHARE: 0.25},
            "warming up, 25% solved",
        ),
        (
            {learner_stats.WARMUP_STEPS: 10.0, learner_stats.WARMUP_HELDOUT_LOSS: 1.5},
            "warming up, 10 steps, held-out loss 1.500",
        ),
        (
            {learner_stats.WARMUP_STEPS: 10.0, learner_stats.VERSION_STEP: 0.0},
            "waiting for the first batch",
        ),
        ({learner_stats.INVALID_BATCHES: 3.0}, "waiting for the first batch, 3 refused by the learner"),
    ],
)
def test_services_without_a_first_update_say_what_they_wait_for(values: dict[str, float], phase: str) -> None:
    assert phase_without_update(values) == phase
