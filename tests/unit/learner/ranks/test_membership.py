import pytest

from tidegate.core.errors import ConfigError
from tidegate.learner.ranks.membership import Membership, membership

RANKS = {"WORLD_SIZE": "3", "RANK": "1", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_a_process_without_fellows_trains_alone(environ: dict[str, str]) -> None:
    assert membership(environ) is None


def test_environment_of_a_launcher_defines_the_rank() -> None:
    assert membership(RANKS) == Membership(rank=1, count=3, local_rank=0)


def test_name_of_a_pod_is_its_rank() -> None:
    environ = {"WORLD_SIZE": "3", "TIDEGATE_POD_NAME": "run-learner-2"}
    assert membership(environ) == Membership(rank=2, count=3, local_rank=0)


@pytest.mark.parametrize(
    "environ", [{}, {"TIDEGATE_POD_NAME": "laptop"}, {"TIDEGATE_POD_NAME": "run-learner-3"}]
)
def test_process_of_several_without_a_number_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        membership({"WORLD_SIZE": "3", **environ})


@pytest.mark.parametrize("changes", [{"RANK": ""}, {"RANK": "3"}, {"WORLD_SIZE": "many"}])
def test_an_environment_that_contradicts_itself_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="RANK"):
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
