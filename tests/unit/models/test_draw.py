"""Draws are exact, and a text's draws are its own."""

import numpy as np
import pytest
import torch

from tidegate.models.draw import BLOCK, UNIFORM_BITS, draw_tokens, uniforms

LARGEST = 1.0 - 2.0**-UNIFORM_BITS


def grid(num_points: int) -> torch.Tensor:
    return ((torch.arange(num_points, dtype=torch.float64) + 0.5) / num_points)[:, None]


@pytest.mark.parametrize("vocabulary", [2, 59, BLOCK, BLOCK + 1, 3 * BLOCK, 1000])
def test_numbers_spread_evenly_give_every_token_its_share(vocabulary: int) -> None:
    num_points = 200_000 if vocabulary <= BLOCK else 40_000
    logits_V = 3 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    counts_V = np.zeros(vocabulary)
    points_R1 = grid(num_points)
    for start in range(0, num_points, 4000):
        uniforms_R1 = points_R1[start : start + 4000]
        tokens_R = draw_tokens(logprobs_V.expand(len(uniforms_R1), -1), uniforms_R1)
        counts_V += np.bincount(tokens_R.numpy(), minlength=vocabulary)
    # An interval of length p holds p·N points of the grid, give or take its two ends and float32.
    np.testing.assert_allclose(counts_V, logprobs_V.exp().double().numpy() * num_points, atol=1.1)


@pytest.mark.parametrize("vocabulary", [7, 2 * BLOCK + 3])
@pytest.mark.parametrize("number", [0.0, 0.5, LARGEST])
def test_a_token_without_probability_is_never_drawn(vocabulary: int, number: float) -> None:
    for only in (0, vocabulary // 2, vocabulary - 1):
        logprobs_RV = torch.full((1, vocabulary), -torch.inf)
        logprobs_RV[0, only] = 0.0
        assert int(draw_tokens(logprobs_RV, torch.tensor([[number]], dtype=torch.float64))) == only


def test_the_largest_number_draws_the_last_token_whatever_the_rounding() -> None:
    logprobs_RV = torch.log_softmax(torch.randn(500, 700, generator=torch.Generator().manual_seed(0)), dim=-1)
    tokens_R = draw_tokens(logprobs_RV, torch.full((500, 1), LARGEST, dtype=torch.float64))
    assert int(tokens_R.min()) == int(tokens_R.max()) == 699


def test_numbers_are_uniform_over_seeds_and_over_positions() -> None:
    seeds = np.arange(100_000, dtype=np.uint64)
    ones = np.ones(100_000, dtype=np.int64)
    for numbers in (
        uniforms(seeds, ones * 7),
        uniforms(np.full(100_000, 3, dtype=np.uint64), np.arange(100_000)),
        uniforms(seeds << np.uint64(40), ones),
    ):
        assert 0.0 <= numbers.min() <= numbers.max() <= LARGEST
        counts = np.histogram(numbers, bins=64, range=(0.0, 1.0))[0]
        expected = len(numbers) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 63 + 4 * (2 * 63) ** 0.5


def test_neither_neighbouring_seeds_nor_neighbouring_positions_follow_each_other() -> None:
    seeds = np.arange(50_000, dtype=np.uint64)
    zeros = np.zeros(50_000, dtype=np.int64)
    here = uniforms(seeds, zeros)
    for there in (uniforms(seeds + np.uint64(1), zeros), uniforms(seeds, zeros + 1)):
        assert abs(np.corrcoef(here, there)[0, 1]) < 4 / 50_000**0.5


def test_numbers_are_those_of_splitmix64() -> None:
    # The reference in C with state 0 gives these as its first outputs.
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    numbers = uniforms(np.zeros(3, dtype=np.uint64), np.arange(3))
    assert numbers.tolist() == [(output >> 12) * 2.0**-52 for output in reference]
