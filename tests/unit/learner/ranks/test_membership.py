import pytest

from tidegate.core.errors import ConfigError
from tidegate.learner.ranks.membership import Membership, PodRanks, membership, pod_ranks

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


def test_pod_without_a_number_of_ranks_is_one_rank() -> None:
    assert pod_ranks({"TIDEGATE_POD_NAME": "t-learner-2", "WORLD_SIZE": "3"}) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TIDEGATE_POD_NAME": "t-learner-0"}, PodRanks(first=0, in_pod=8, count=8)),
        ({"TIDEGATE_POD_NAME": "t-learner-2", "WORLD_SIZE": "32"}, PodRanks(first=16, in_pod=8, count=32)),
        # The pods of a Job end in a random word, and Kubernetes numbers them in a variable.
        (
            {
                "TIDEGATE_POD_NAME": "t-learner-pods-0-1-x7k29",
                "WORLD_SIZE": "16",
                "JOB_COMPLETION_INDEX": "1",
            },
            PodRanks(first=8, in_pod=8, count=16),
        ),
    ],
)
def test_ranks_of_a_pod_follow_those_of_the_pods_before_it(
    environ: dict[str, str], expected: PodRanks
) -> None:
    assert pod_ranks({"TIDEGATE_RANKS_IN_POD": "8", **environ}) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"TIDEGATE_RANKS_IN_POD": "eight"},
        {"TIDEGATE_RANKS_IN_POD": "0"},
        {"TIDEGATE_RANKS_IN_POD": "8", "WORLD_SIZE": "12", "TIDEGATE_POD_NAME": "t-learner-0"},
        {"TIDEGATE_RANKS_IN_POD": "8", "WORLD_SIZE": "16", "TIDEGATE_POD_NAME": "t-learner-2"},
        {"TIDEGATE_RANKS_IN_POD": "8", "WORLD_SIZE": "16"},
    ],
    ids=str,
)
def test_pod_whose_ranks_do_not_fit_the_group_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        pod_ranks(environ)


def test_number_of_a_jobs_pod_numbers_a_rank_and_not_the_end_of_its_name() -> None:
    environ = {
        "WORLD_SIZE": "2",
        "TIDEGATE_POD_NAME": "t-learner-pods-0-1-47113",
        "JOB_COMPLETION_INDEX": "1",
    }
    found = membership(environ)
    assert found is not None
    assert found.rank == 1
