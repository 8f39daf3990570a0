import pytest

from tidegate.core.errors import ConfigError
from tidegate.learner.ranks.membership import Membership, membership

RANKS = {"WORLD_SIZE": "3", "RANK": "1", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_a_process_without_fellows_trains_alone(environ: dict[str, str]) -> None:
    assert membership(environ) is None


def test_torchrun_environment_defines_the_rank() -> None:
    assert membership(RANKS) == Membership(rank=1, count=3, local_rank=0)


@pytest.mark.parametrize("changes", [{"RANK": ""}, {"RANK": "3"}, {"WORLD_SIZE": "many"}])
def test_an_environment_that_contradicts_itself_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="torchrun"):
        membership({**RANKS, **changes})


@pytest.mark.parametrize(
    ("rank", "local_rank", "pod"),
    [
        ("0", "0", "run-learner-0"),
        ("1", "1", "run-learner-0"),
        ("1", "0", "run-learner-1"),
        ("1", "0", "laptop"),
    ],
)
def test_rank_0_is_in_the_first_pod(rank: str, local_rank: str, pod: str) -> None:
    environ = {**RANKS, "RANK": rank, "LOCAL_RANK": local_rank, "TIDEGATE_POD_NAME": pod}
    assert membership(environ) == Membership(rank=int(rank), count=3, local_rank=int(local_rank))


@pytest.mark.parametrize(("rank", "pod"), [("0", "run-learner-1"), ("1", "run-learner-0")])
def test_rank_0_anywhere_else_is_refused_because_the_checkpoints_are_not_there(rank: str, pod: str) -> None:
    with pytest.raises(ConfigError, match="checkpoints are on the disk of the first"):
        membership({**RANKS, "RANK": rank, "TIDEGATE_POD_NAME": pod})
