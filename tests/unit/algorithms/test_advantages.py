import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tests.reference import vtrace as slow
from tidegate.algorithms.advantages import GROUP_STD_FLOOR, group_advantages, normalised

GROUPED = st.lists(st.tuples(st.floats(-10.0, 10.0), st.integers(0, 4)), min_size=1, max_size=40)


@given(GROUPED, st.booleans())
def test_group_advantages_equal_the_slow_ones(
    grouped: list[tuple[float, int]], normalise_by_std: bool
) -> None:
    rewards = [reward for reward, _ in grouped]
    groups = [group for _, group in grouped]
    found = group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), normalise_by_std=normalise_by_std
    )
    expected = slow.group_advantages(
        rewards, groups, normalise_by_std=normalise_by_std, floor=GROUP_STD_FLOOR
    )
    assert found.numpy().tolist() == pytest.approx(expected, abs=1e-9)


@given(GROUPED)
def test_group_advantages_cancel_within_each_group(grouped: list[tuple[float, int]]) -> None:
    rewards_B = torch.tensor([reward for reward, _ in grouped], dtype=torch.float64)
    groups_B = torch.tensor([group for _, group in grouped])
    found = group_advantages(rewards_B, groups_B, normalise_by_std=True)
    for group in {group for _, group in grouped}:
        assert float(found[groups_B == group].sum()) == pytest.approx(0.0, abs=1e-6)


def test_equal_rewards_and_groups_of_one_have_no_advantage() -> None:
    found = group_advantages(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 0, 1]), normalise_by_std=True)
    assert found.numpy().tolist() == [0.0, 0.0, 0.0]


def test_group_advantages_of_nothing_is_nothing() -> None:
    assert (
        len(group_advantages(torch.empty(0), torch.empty(0, dtype=torch.int64), normalise_by_std=True)) == 0
    )


def test_group_advantages_refuse_an_index_of_another_length() -> None:
    with pytest.raises(ValueError, match="group_index_B"):
        group_advantages(torch.ones(3), torch.zeros(2, dtype=torch.int64), normalise_by_std=True)


@given(st.integers(0, 2**31), st.floats(1e-2, 1e4), st.floats(-1e3, 1e3))
def test_normalised_advantages_forget_scale_and_offset(seed: int, scale: float, offset: float) -> None:
    values_B = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = normalised(scale * values_B + offset)
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.square().mean()) == pytest.approx(1.0, abs=0.03)
    torch.testing.assert_close(found.argsort(), values_B.argsort())


def test_normalising_does_not_make_signal_of_rounding() -> None:
    equal_B = torch.full((1000,), 0.1) * 3.0
    assert float(normalised(equal_B).abs().max()) < 1e-2
