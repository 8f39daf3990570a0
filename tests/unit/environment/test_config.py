"""The environment's section: rewards with a verifier, times that can be read."""

from typing import Any

import msgspec
import pytest

from tidegate.core.errors import ConfigError
from tidegate.environment.config import EnvironmentConfig, times_of
from tidegate.environment.verifiers.settings import ClassifierSettings, JudgeSettings

JUDGE = {"kind": "judge", "base_url": "http://localhost:1/v1", "model": "m"}
CLASSIFIER = {"kind": "classifier", "path": "folder"}


def test_verifiers_are_read_by_their_kind_and_survive_being_written() -> None:
    section: dict[str, Any] = {
        "rewards": {"task": 1.0, "taste": 0.5, "safe": 0.0},
        "verifiers": {"taste": JUDGE, "safe": CLASSIFIER},
    }
    config = msgspec.convert(section, EnvironmentConfig)
    assert isinstance(config.verifiers["taste"], JudgeSettings)
    assert isinstance(config.verifiers["safe"], ClassifierSettings)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EnvironmentConfig) == config


def test_reward_is_the_tasks_own_without_a_table() -> None:
    assert EnvironmentConfig().weights() == {"task": 1.0}
    assert EnvironmentConfig(rewards={"task": 0.5}).weights() == {"task": 0.5}


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"rewards": {"taste": 1.0}}, "rewards.taste names no verifier"),
        ({"verifiers": {"taste": JUDGE}}, "verifiers.taste has no weight"),
        ({"verifiers": {"task": JUDGE}, "rewards": {"task": 1.0}}, "verifiers.task is taken"),
        ({"score_latency": "slow"}, "environment.score_latency"),
        ({"tool_latency": "lognormal:1"}, "environment.tool_latency"),
    ],
)
def test_invalid_section_is_refused_by_name(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        msgspec.convert(section, EnvironmentConfig)


def test_empty_text_means_no_latency() -> None:
    assert times_of("").mean_s == 0.0
    assert times_of("lognormal:2:1").mean_s == 2.0
