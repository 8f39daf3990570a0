"""First priorities of sequences beside a walk over single steps; for transitions see ``actor/test_q_acting.py``."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.reference import q_learning as slow
from tidegate.algorithms.first_priorities import first_sequence_priorities
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.core.records import Array


def walked(errors: Array, states: Array, segment: dict[str, Array], settings: QActingSettings) -> Array:
    """What is expected: every sequence of every environment, one step after the other."""
    num_steps, num_envs = errors.shape
    expected = np.zeros_like(errors)
    for env in range(num_envs):
        valid = segment["valid"][:, env].tolist()
        ends = (segment["terminated"] | segment["truncated"])[:, env].tolist()
        for start in range(num_steps):
            stored = start % (settings.sequence_period or num_steps) == 0
            if not valid[start] or not (stored or not valid[start - 1]):
                continue
            steps = [start]
            while not ends[steps[-1]] and len(steps) < settings.sequence_length and steps[-1] + 1 < num_steps:
                steps.append(steps[-1] + 1)
            burn_in = settings.burn_in if states[start, env].any() else 0
            if len(steps) <= burn_in and not ends[steps[-1]]:
                burn_in = 0
            expected[start, env] = slow.sequence_priority(
                [float(errors[step, env]) for step in steps],
                burn_in=burn_in,
                length=len(steps),
                max_share=settings.priority_max_share,
            )
    return expected


@given(
    seed=st.integers(0, 2**31),
    period=st.sampled_from([0, 1, 2, 3, 4, 6, 12]),
    length=st.integers(1, 20),
    burn_in=st.integers(0, 8),
    max_share=st.floats(0.0, 1.0),
)
def test_sequences_have_the_priority_of_their_known_trained_steps(
    seed: int, period: int, length: int, burn_in: int, max_share: float
) -> None:
    rng = np.random.default_rng(seed)
    shape = (12, 3)
    chance_TN = rng.random(shape)
    terminated_TN, truncated_TN = chance_TN < 0.1, chance_TN > 0.9
    valid_TN = rng.random(shape) > 0.05
    valid_TN[1:] &= ~(terminated_TN | truncated_TN)[:-1]
    segment: dict[str, Array] = {
        "valid": valid_TN,
        "terminated": terminated_TN & valid_TN,
        "truncated": truncated_TN & valid_TN,
    }
    errors_TN = np.where(valid_TN, rng.exponential(1.0, shape), 0.0).astype(np.float32)
    states_TNM = rng.normal(0, 1, (*shape, 2)).astype(np.float32)
    states_TNM[1:][~valid_TN[:-1]] = 0.0
    settings = QActingSettings(
        sequence_period=period, sequence_length=length, burn_in=burn_in, priority_max_share=max_share
    )
    found = first_sequence_priorities(errors_TN, states_TNM, segment, settings)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, walked(errors_TN, states_TNM, segment, settings), rtol=1e-5)


def priorities_of(
    errors: list[float], *, ended: bool, state: float, settings: QActingSettings
) -> list[float]:
    column = np.zeros((len(errors), 1), np.bool_)
    end = column.copy()
    end[-1] = ended
    segment: dict[str, Array] = {"valid": ~column, "terminated": end, "truncated": column}
    found = first_sequence_priorities(
        np.array(errors, np.float32)[:, None],
        np.full((len(errors), 1, 1), state, np.float32),
        segment,
        settings,
    )
    return found[:, 0].tolist()


def test_burn_in_does_not_count_from_a_stored_state_and_none_is_needed_from_the_initial_one() -> None:
    settings = QActingSettings(sequence_length=4, burn_in=2)
    errors = [9.0, 9.0, 1.0, 2.0]
    assert priorities_of(errors, ended=False, state=0.5, settings=settings)[0] == pytest.approx(1.95)
    assert priorities_of(errors, ended=False, state=0.0, settings=settings)[0] == pytest.approx(8.625)


def test_sequence_of_which_only_the_burn_in_is_known_has_the_priority_of_that() -> None:
    settings = QActingSettings(sequence_period=2, sequence_length=6, burn_in=2)
    errors = [0.0, 1.0, 3.0, 5.0]
    cut = priorities_of(errors, ended=False, state=0.5, settings=settings)
    assert cut == [pytest.approx(4.9), 0.0, pytest.approx(4.9), 0.0]
    ended = priorities_of(errors, ended=True, state=0.5, settings=settings)
    assert ended == [pytest.approx(4.9), 0.0, 0.0, 0.0], "it ended inside of its burn-in: nothing is trained"
