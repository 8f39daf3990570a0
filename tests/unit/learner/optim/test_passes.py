import torch
from hypothesis import given
from hypothesis import strategies as st

from tidegate.learner.optim.passes import in_passes
from tidegate.models.completion_batch import CompletionBatch, pack_completions


def packed(groups: list[int]) -> CompletionBatch:
    return pack_completions([[1, 5, 6]] * (max(groups) + 1), [[7, 8]] * len(groups), group_index=groups)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 40))
def test_passes_hold_every_row_once_and_no_more_than_fits(sizes: list[int], tokens_max: int) -> None:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    batch = packed(groups)
    passes = in_passes(batch, torch.arange(len(groups)), tokens_max=tokens_max)
    assert torch.equal(torch.cat(passes), torch.arange(len(groups)))
    for rows_B in passes:
        num_prompts = len({groups[int(row)] for row in rows_B})
        assert len(rows_B) == 1 or 3 * num_prompts + 2 * len(rows_B) <= tokens_max


def test_no_rows_are_one_pass_of_none() -> None:
    assert [len(part) for part in in_passes(packed([0]), torch.arange(0), tokens_max=8)] == [0]
