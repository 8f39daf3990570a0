"""Sequences of a batch: every row once, none goes over an episode's end, in the order of torch's packed sequences."""

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given
from torch.nn.utils.rnn import pack_sequence

from tests.support.segments import random_segment
from tidegate.algorithms.sequences import pack_sequences


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 5))
def test_rows_are_those_of_torchs_packed_sequences(seed: int, num_steps: int, num_envs: int) -> None:
    valid_TN = random_segment(seed, num_steps=num_steps, num_envs=num_envs)["valid"]
    walked: list[tuple[list[int], int, bool]] = []
    for n in range(num_envs):
        rows: list[int] = []
        for t in range(num_steps + 1):
            if t > 0 and not valid_TN[t - 1, n]:
                walked.append((rows, n, rows[0] == n))
                rows = []
            rows.append(t * num_envs + n)
        walked.append((rows, n, rows[0] == n))
    walked.sort(key=lambda sequence: -len(sequence[0]))
    expected = pack_sequence([torch.tensor(rows) for rows, _, _ in walked])
    found = pack_sequences(valid_TN)
    np.testing.assert_array_equal(found.rows_R, expected.data.numpy())
    np.testing.assert_array_equal(found.batch_sizes_L, expected.batch_sizes.numpy())
    assert found.columns_Q.tolist() == [n for _, n, _ in walked]
    assert found.continues_Q.tolist() == [continues for _, _, continues in walked]
    assert sorted(found.rows_R.tolist()) == list(range((num_steps + 1) * num_envs))


def test_the_row_after_an_end_is_the_last_of_its_sequence() -> None:
    valid_TN = np.array([[True], [False], [True]])
    found = pack_sequences(valid_TN)
    assert found.rows_R.tolist() == [0, 2, 1, 3]
    assert found.batch_sizes_L.tolist() == [2, 2]
    assert found.continues_Q.tolist() == [True, False]


def test_a_segment_that_begins_after_an_end_has_a_first_sequence_of_one_row() -> None:
    found = pack_sequences(np.array([[False], [True]]))
    assert found.rows_R.tolist() == [1, 0, 2]
    assert found.continues_Q.tolist() == [False, True]
    assert found.columns_Q.tolist() == [0, 0]
