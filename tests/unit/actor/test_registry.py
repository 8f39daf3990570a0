"""The table of engines opens those that fit, and refuses the others with a reason."""

from typing import Literal

import pytest

from tests.support.environments import CARTPOLE
from tests.unit.actor.support import CHAR_LM
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import (
    ENGINES,
    EngineName,
    EngineSetting,
    find_engine,
    open_engine,
    open_token_engine,
)
from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

SEGMENTS = WorkloadConfig(kind="segments", env="CartPole-v1")
TEXT = WorkloadConfig(kind="text", env="arithmetic")
EPISODES = WorkloadConfig(kind="text", env="arithmetic", turns_max=4)
MLP = PolicyConfig(kind="mlp")
PRETRAINED = PolicyConfig(kind="transformers", path="smollm2")


FITTING: dict[EngineName, tuple[WorkloadConfig, PolicyConfig]] = {
    "vector_env": (SEGMENTS, MLP),
    "gradient_env": (SEGMENTS, MLP),
    "inference_env": (SEGMENTS, MLP),
    "text_generation": (TEXT, CHAR_LM),
}


def test_every_engine_of_batches_opens_for_its_own_workload() -> None:
    assert FITTING.keys() == {name for name, entry in ENGINES.items() if entry.port == "batch"}
    for name, (workload, policy) in FITTING.items():
        setting = EngineSetting(
            workload=workload,
            policy=policy,
            seed=0,
            actor_index=0,
            description=CARTPOLE,
            exchange=StepExchange(),
        )
        engine = open_engine(name, setting, EngineControl(), SystemClock())
        # Its environments are those of vector_env; only who acts in them differs.
        module = "vector_env" if name == "inference_env" else name
        assert type(engine).__module__ == f"tidegate.actor.engines.{module}"
        engine.close()


@pytest.mark.parametrize(
    ("workload", "policy", "name"),
    [
        (SEGMENTS, MLP, "vector_env"),
        (TEXT, CHAR_LM, "text_generation"),
        (EPISODES, CHAR_LM, "torch"),
        (TEXT, PRETRAINED, "torch"),
        (EPISODES, PRETRAINED, "torch"),
    ],
)
def test_auto_opens_the_first_engine_that_fits(
    workload: WorkloadConfig, policy: PolicyConfig, name: EngineName
) -> None:
    assert find_engine("auto", workload=workload, policy=policy) is ENGINES[name]


@pytest.mark.parametrize("name", ["torch", "vllm", "sglang"])
def test_engines_that_write_tokens_run_pretrained_models_in_any_number_of_turns(name: EngineName) -> None:
    for workload in (TEXT, EPISODES):
        assert find_engine(name, workload=workload, policy=PRETRAINED).port == "tokens"


@pytest.mark.parametrize(
    ("name", "workload", "policy"),
    [
        ("text_generation", EPISODES, CHAR_LM),
        ("text_generation", TEXT, PRETRAINED),
        ("vllm", TEXT, CHAR_LM),
        ("torch", SEGMENTS, MLP),
    ],
)
def test_refusal_of_an_engine_names_what_it_can_run(
    name: EngineName, workload: WorkloadConfig, policy: PolicyConfig
) -> None:
    with pytest.raises(ConfigError, match=f"{name} runs"):
        find_engine(name, workload=workload, policy=policy)


def test_engine_is_opened_by_the_port_it_serves() -> None:
    setting = EngineSetting(workload=EPISODES, policy=CHAR_LM, seed=0, actor_index=0)
    with pytest.raises(ConfigError, match="writes tokens"):
        open_engine("auto", setting, EngineControl(), SystemClock())
    setting = EngineSetting(workload=TEXT, policy=CHAR_LM, seed=0, actor_index=0)
    with pytest.raises(ConfigError, match="whole batches"):
        open_token_engine("auto", setting, EngineControl(), SystemClock())


@pytest.mark.parametrize(
    ("name", "workload", "policy"),
    [("vector_env", TEXT, CHAR_LM), ("text_generation", SEGMENTS, MLP), ("auto", SEGMENTS, CHAR_LM)],
)
def test_engine_that_does_not_fit_is_a_config_error(
    name: EngineName | Literal["auto"], workload: WorkloadConfig, policy: PolicyConfig
) -> None:
    setting = EngineSetting(workload=workload, policy=policy, seed=0, actor_index=0)
    with pytest.raises(ConfigError, match="cannot run"):
        open_engine(name, setting, EngineControl(), SystemClock())


def test_policy_that_does_not_fit_the_environment_is_a_config_error() -> None:
    policy = PolicyConfig(kind="mlp", input_scale=(1.0,))
    setting = EngineSetting(workload=SEGMENTS, policy=policy, seed=0, actor_index=0, description=CARTPOLE)
    with pytest.raises(ConfigError, match="has 1 factors for 4 inputs"):
        open_engine("auto", setting, EngineControl(), SystemClock())
