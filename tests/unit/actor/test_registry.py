"""The table of engines opens what fits, and says what does not."""

from typing import Literal

import pytest

from tests.unit.actor.support import CHAR_LM
from tidegate.actor.engines.port import Steering
from tidegate.actor.engines.registry import ENGINES, EngineName, EngineSetting, open_engine
from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

SEGMENTS = WorkloadConfig(kind="segments", env="CartPole-v1")
TEXT = WorkloadConfig(kind="text", env="arithmetic")
MLP = PolicyConfig(kind="mlp_actor_critic")


FITTING: dict[EngineName, tuple[WorkloadConfig, PolicyConfig]] = {
    "vector_env": (SEGMENTS, MLP),
    "text_generation": (TEXT, CHAR_LM),
}


def test_every_engine_opens_for_its_own_workload() -> None:
    assert FITTING.keys() == ENGINES.keys()
    for name, (workload, policy) in FITTING.items():
        setting = EngineSetting(workload=workload, policy=policy, seed=0, actor_index=0)
        for engine in (
            open_engine(name, setting, Steering(), SystemClock()),
            open_engine("auto", setting, Steering(), SystemClock()),
        ):
            assert type(engine).__module__ == f"tidegate.actor.engines.{name}"
            engine.close()


@pytest.mark.parametrize(
    ("name", "workload", "policy"),
    [("vector_env", TEXT, CHAR_LM), ("text_generation", SEGMENTS, MLP), ("auto", SEGMENTS, CHAR_LM)],
)
def test_engine_that_does_not_fit_is_a_config_error(
    name: EngineName | Literal["auto"], workload: WorkloadConfig, policy: PolicyConfig
) -> None:
    setting = EngineSetting(workload=workload, policy=policy, seed=0, actor_index=0)
    with pytest.raises(ConfigError, match="cannot run"):
        open_engine(name, setting, Steering(), SystemClock())


def test_environment_without_a_known_network_is_a_config_error() -> None:
    unknown = WorkloadConfig(kind="segments", env="Nope-v1")
    setting = EngineSetting(workload=unknown, policy=MLP, seed=0, actor_index=0)
    with pytest.raises(ConfigError, match="Nope-v1"):
        open_engine("auto", setting, Steering(), SystemClock())
