import torch
from hypothesis import given
from hypothesis import strategies as st

from tidegate.learner.ranks.share import share_of_groups, share_of_rows

COUNTS = st.integers(1, 9)


@given(num_rows=st.integers(0, 200), count=COUNTS)
def test_every_row_has_one_rank_and_no_rank_has_two_rows_more_than_another(num_rows: int, count: int) -> None:
    shares = [range(num_rows)[share_of_rows(num_rows, rank=rank, count=count)] for rank in range(count)]
    assert [row for share in shares for row in share] == list(range(num_rows))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12), count=COUNTS, seed=st.integers(0, 99))
def test_a_group_is_computed_whole_by_one_rank(sizes: list[int], count: int, seed: int) -> None:
    in_order = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    group_index_B = in_order[torch.randperm(len(in_order), generator=torch.Generator().manual_seed(seed))]
    shares = [share_of_groups(group_index_B, rank=rank, count=count) for rank in range(count)]
    assert sorted(int(row) for share in shares for row in share) == list(range(len(group_index_B)))
    groups = [{int(group_index_B[row]) for row in share} for share in shares]
    assert sum(len(group) for group in groups) == len(sizes)
