"""What an update trained of each environment."""

import msgspec

from tests.unit.environment.test_state import record
from tidegate.core.records import Trajectory
from tidegate.learner.environment_figures import by_environment


def rewarded(env_id: str, reward: float) -> Trajectory:
    return msgspec.structs.replace(record(0, env_id=env_id), reward=reward)


def test_each_environment_has_its_share_and_its_mean_reward() -> None:
    batch = [rewarded("a", 1.0), rewarded("a", 0.0), rewarded("a", 1.0), rewarded("b", 0.5)]
    found = by_environment(batch, ["a", "b", "c"])
    assert found == {
        "share.a": 0.75,
        "reward.a": 2 / 3,
        "share.b": 0.25,
        "reward.b": 0.5,
        "share.c": 0.0,
    }


def test_run_of_one_environment_has_no_metric_of_it() -> None:
    assert by_environment([rewarded("a", 1.0)], []) == {}
