"""A Q-network at the inference service: the actor explores and makes first priorities as with weights of its own."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from tests.support.environments import CARTPOLE
from tests.unit.actor.answered_steps import answering
from tests.unit.actor.support import segment_task, snapshot
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import Engine, EngineControl, Rollouts
from tidegate.actor.engines.registry import EngineName, EngineSetting, open_engine
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.core.records import PolicySnapshot
from tidegate.core.spaces import MEMORY, PRIORITIES
from tidegate.inference.acting import act_together, prepare
from tidegate.inference.state import check_step
from tidegate.models.policies import build_policy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.wire.vector_step import ActedStep, ActStep, StepLayout

NUM_ENVS, NUM_STEPS = 4, 24
PLAIN = PolicyConfig(kind="q_mlp", hidden=(8,))
WITH_MEMORY = PolicyConfig(kind="q_mlp", hidden=(8,), memory="gru", memory_units=5)


def fresh(config: PolicyConfig, step: int) -> PolicySnapshot:
    params = build_policy(CARTPOLE, config).init_params(np.random.default_rng(step))
    return snapshot(step, {name: 3.0 * value for name, value in params.items()})


def engine_of(
    name: EngineName, config: PolicyConfig, control: EngineControl, exchange: StepExchange
) -> Engine:
    setting = EngineSetting(
        workload=WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=NUM_ENVS),
        policy=config,
        seed=0,
        actor_index=0,
        description=CARTPOLE,
        q_learning=QActingSettings(n_steps=3, sequence_period=8 if config.memory != "none" else 0),
        exchange=exchange,
    )
    return open_engine(name, setting, control, SystemClock())


def served(
    config: PolicyConfig, *, version_at: Callable[[int], int]
) -> Callable[[ActStep, StepLayout], ActedStep]:
    """The inference service's own answers, through the bytes of its messages."""
    policy = build_policy(CARTPOLE, config)

    def answer(step: ActStep, layout: StepLayout) -> ActedStep:
        prepared = prepare(policy, fresh(config, version_at(step.number)), threads=1)
        [acted] = act_together(policy, prepared, [check_step(step, layout, instance="actor-0", now_s=0.0)])
        return layout.acted(
            acted.number,
            acted.version,
            actions=acted.actions.tobytes(),
            logprobs=acted.logprobs.tobytes(),
            memory=acted.memory.tobytes(),
            outputs=acted.outputs.tobytes(),
        )

    return answer


def two_segments(
    name: EngineName, config: PolicyConfig, *, version_at: Callable[[int], int] = lambda _number: 3
) -> list[Rollouts]:
    control, exchange = EngineControl(), StepExchange()
    control.newest = fresh(config, 3)
    engine = engine_of(name, config, control, exchange)
    layout = StepLayout.of(build_policy(CARTPOLE, config), num_envs=NUM_ENVS)
    tasks = [
        msgspec.structs.replace(segment_task(unroll_length=NUM_STEPS), task_id=f"task-{seed}", seed=seed)
        for seed in (5, 6)
    ]
    with answering(exchange, served(config, version_at=version_at), layout):
        for task in tasks:
            engine.check_task(task)
        return engine.generate(tasks)


@pytest.mark.parametrize("config", [PLAIN, WITH_MEMORY], ids=["plain", "memory"])
def test_segments_are_those_of_an_actor_with_weights_to_the_last_bit(config: PolicyConfig) -> None:
    own, remote = two_segments("vector_env", config), two_segments("inference_env", config)
    assert len(own) == len(remote) == 2
    for expected, found in zip(own, remote, strict=True):
        [expected_sample], [found_sample] = expected.samples, found.samples
        assert found_sample.spans == expected_sample.spans
        assert found_sample.tensors.keys() == expected_sample.tensors.keys()
        assert PRIORITIES in found_sample.tensors
        assert (MEMORY in found_sample.tensors) == (config is WITH_MEMORY)
        for name, tensor in expected_sample.tensors.items():
            np.testing.assert_array_equal(found_sample.tensors[name], tensor, err_msg=name)
        chances = np.exp(found_sample.tensors["behavior_logprobs"])
        assert chances[:, 0].min() < chances[:, -1].max(), "the first copy explores more than the last"


@pytest.mark.parametrize("config", [PLAIN, WITH_MEMORY], ids=["plain", "memory"])
def test_a_segment_without_the_answer_that_its_priorities_need_is_not_recorded(config: PolicyConfig) -> None:
    control, exchange = EngineControl(), StepExchange()
    control.newest = fresh(config, 3)
    engine = engine_of("inference_env", config, control, exchange)
    layout = StepLayout.of(build_policy(CARTPOLE, config), num_envs=NUM_ENVS)
    answer = served(config, version_at=lambda _number: 3)
    task = segment_task(unroll_length=NUM_STEPS)

    def until_the_end(step: ActStep, layout: StepLayout) -> ActedStep | None:
        if step.number <= NUM_STEPS:
            return answer(step, layout)
        control.cut = frozenset({task.task_id})
        return None

    with answering(exchange, until_the_end, layout):
        engine.check_task(task)
        assert engine.generate([task]) == []


def test_record_names_the_version_of_each_answer_and_not_the_one_that_valued_its_end() -> None:
    [first, _] = two_segments(
        "inference_env", PLAIN, version_at=lambda number: 3 if number <= NUM_STEPS else 4
    )
    [sample] = first.samples
    assert [(span.version.step, span.start, span.stop) for span in sample.spans] == [(3, 0, NUM_STEPS)]
