"""Sequences of Q-learning: what is trained after the burn-in, and priorities, beside loops over single steps."""

import json
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.reference import q_learning as slow
from tidegate.algorithms.q_sequences import burn_ins, sequence_priorities, trained_steps

GOLDEN = Path(__file__).parents[2] / "golden" / "q_sequences.json"
SEEDS = st.integers(0, 2**31)


def test_sequences_from_the_initial_state_have_no_burn_in() -> None:
    memory_BM = np.array([[0.0, 0.0], [0.0, -0.1], [0.3, 0.0]], np.float32)
    assert burn_ins(memory_BM, burn_in=4).tolist() == [0, 4, 4]
    assert burn_ins(memory_BM, burn_in=0).tolist() == [0, 0, 0]


@given(SEEDS, st.integers(1, 9))
def test_trained_steps_are_those_after_the_burn_in_and_before_the_end(seed: int, num_steps: int) -> None:
    rng = np.random.default_rng(seed)
    lengths_B, burn_ins_B = rng.integers(1, num_steps + 1, 6), rng.integers(0, num_steps + 2, 6)
    found = trained_steps(torch.tensor(lengths_B), torch.tensor(burn_ins_B), torch.arange(num_steps))
    for row, length, burn_in in zip(found.numpy(), lengths_B, burn_ins_B, strict=True):
        assert row.tolist() == [burn_in <= step < length for step in range(num_steps)]


@given(SEEDS, st.floats(0.0, 1.0))
def test_priorities_mix_the_largest_and_the_mean_error_of_trained_steps(seed: int, max_share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    errors_BL = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    lengths_B = torch.tensor([7, 5, 1, 3, 4])
    burn_ins_B = torch.tensor([0, 2, 0, 3, 6])
    trained_BL = trained_steps(lengths_B, burn_ins_B, torch.arange(7))
    found = sequence_priorities(errors_BL, trained_BL, torch, max_share=max_share)
    for index in range(5):
        expected = slow.sequence_priority(
            errors_BL[index].numpy().tolist(),
            burn_in=int(burn_ins_B[index]),
            length=int(lengths_B[index]),
            max_share=max_share,
        )
        assert float(found[index]) == pytest.approx(expected, abs=1e-12)
    sizes_BL = errors_BL.abs() * trained_BL
    assert bool((found <= sizes_BL.amax(dim=1) + 1e-12).all())


def test_sequences_without_a_trained_step_have_no_priority() -> None:
    found = sequence_priorities(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), torch, max_share=0.9)
    assert found.numpy().tolist() == [0.0]


def test_golden_numbers() -> None:
    errors_BL = torch.tensor([[0.5, -2.0, 1.0, 9.0], [-0.25, 0.5, 4.0, 4.0]], dtype=torch.float64)
    trained_BL = trained_steps(torch.tensor([3, 2]), torch.tensor([0, 1]), torch.arange(4))
    found = sequence_priorities(errors_BL, trained_BL, torch, max_share=0.9)
    assert found.numpy().tolist() == pytest.approx(json.loads(GOLDEN.read_text())["priorities"], rel=1e-12)
