"""The engine whose actions come from elsewhere: the records it makes, and when it gives a segment up."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from tests.support.clocks import SkippingClock
from tests.support.environments import CARTPOLE
from tests.support.settings import make_settings
from tests.unit.actor.answered_steps import answering
from tests.unit.actor.support import segment_task, snapshot, version
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.inference_env import RemoteActing
from tidegate.actor.engines.port import Engine, EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.catalogue import actor as statistics
from tidegate.core.records import Array, VersionSpan
from tidegate.inference.main import policy_of
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.models.version_runner import version_runner
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.wire.vector_step import ActedStep, ActStep, StepLayout

NUM_ENVS = 4
# For an answer; only a clock that skips it passes it.
WAIT_S = 300.0
PLAIN = PolicyConfig(kind="mlp", hidden=(8,))
WITH_MEMORY = PolicyConfig(kind="mlp", hidden=(8,), memory="gru", memory_units=5)
OWN = PolicyConfig(kind="own_net.py:Net")
FILES_DIR = str(Path(__file__).parent)


def network(config: PolicyConfig) -> SegmentPolicy:
    """As the service builds it."""
    settings = make_settings(Path(), broker_url="", writes_credentials=False)
    return policy_of(msgspec.structs.replace(settings, policy=config, files_dir=FILES_DIR), CARTPOLE)


class Service:
    """Answers every step by a policy whose version follows from the step's number; None answers nothing."""

    def __init__(self, config: PolicyConfig, *, version_at: Callable[[int], int] = lambda _number: 0) -> None:
        self.policy = network(config)
        self.version_at = version_at
        self.silent_from = 1 << 30
        self.steps: list[ActStep] = []

    def params(self, step: int) -> dict[str, Array]:
        return self.policy.init_params(np.random.default_rng(step))

    def answer(self, step: ActStep, layout: StepLayout) -> ActedStep | None:
        self.steps.append(step)
        if step.number >= self.silent_from:
            return None
        acting = self.version_at(step.number)
        run = version_runner(self.policy, self.params(acting), threads=1)
        outputs, memory = run(layout.split(step.observations), layout.memory(step.memory))
        actions, logprobs = self.policy.actions.sample(outputs, np.random.default_rng(step.seed))
        return ActedStep(step.number, version(acting), actions, logprobs, memory)


def make_engine(
    control: EngineControl, exchange: StepExchange, config: PolicyConfig, *, clock: SystemClock | None = None
) -> tuple[Engine, StepLayout]:
    setting = EngineSetting(
        workload=WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=NUM_ENVS),
        policy=config,
        seed=0,
        actor_index=0,
        description=CARTPOLE,
        exchange=exchange,
        inference_wait_s=WAIT_S,
        files_dir=FILES_DIR,
    )
    layout = StepLayout.of(network(config), num_envs=NUM_ENVS)
    return open_engine("inference_env", setting, control, clock or SystemClock()), layout


@pytest.mark.parametrize("config", [PLAIN, WITH_MEMORY, OWN], ids=["plain", "memory", "own"])
def test_record_holds_the_actions_logprobs_and_versions_of_the_answers(config: PolicyConfig) -> None:
    control, exchange = EngineControl(), StepExchange()
    service = Service(config, version_at=lambda number: 3 if number <= 5 else 4)
    engine, layout = make_engine(control, exchange, config)
    control.newest = snapshot(3, {})
    task = segment_task(unroll_length=8)
    with answering(exchange, service.answer, layout):
        engine.check_task(task)
        [rollouts] = engine.generate([task])
    [sample] = rollouts.samples
    assert sample.spans == (VersionSpan(version(3), 0, 5), VersionSpan(version(4), 5, 8))
    assert [step.number for step in service.steps] == list(range(1, 9))
    memory = np.zeros((NUM_ENVS, service.policy.memory_size), np.float32)
    for row, step in enumerate(service.steps):
        observations = sample.tensors["observations"][row]
        np.testing.assert_array_equal(layout.split(step.observations)["observations"], observations)
        np.testing.assert_allclose(layout.memory(step.memory), memory, atol=1e-6)
        params = service.params(3 if row < 5 else 4)
        if isinstance(service.policy, RecurrentPolicy):
            outputs, memory = service.policy.stepper(params)({"observations": observations}, memory)
        else:
            outputs = service.policy.action_outputs(params, {"observations": observations}, np)
        logprobs = service.policy.actions.logprobs(outputs, sample.tensors["actions"][row], np)
        np.testing.assert_allclose(sample.tensors["behavior_logprobs"][row], logprobs, atol=1e-5)
    assert control.serving is not None
    assert control.serving.version == version(4)
    assert control.figures[statistics.INFERENCE_WAIT_S] > 0


def test_actions_follow_from_the_tasks_seed() -> None:
    def played() -> Array:
        control, exchange = EngineControl(), StepExchange()
        engine, layout = make_engine(control, exchange, PLAIN)
        control.newest = snapshot(0, {})
        task = segment_task(unroll_length=6)
        with answering(exchange, Service(PLAIN).answer, layout):
            engine.check_task(task)
            [rollouts] = engine.generate([task])
        return rollouts.samples[0].tensors["actions"]

    np.testing.assert_array_equal(played(), played())


@pytest.mark.parametrize("why", ["away", "cut", "stop"])
def test_segment_without_an_answer_is_given_up_and_the_environments_go_on_with_the_next(why: str) -> None:
    control, exchange = EngineControl(), StepExchange()
    service = Service(PLAIN)
    clock = SkippingClock()
    engine, layout = make_engine(control, exchange, PLAIN, clock=clock)
    control.newest = snapshot(0, {})
    first, second = segment_task("first", unroll_length=6), segment_task("second", unroll_length=6)
    service.silent_from = 4

    def answer(step: ActStep, layout: StepLayout) -> ActedStep | None:
        if step.number == 4 and why == "away":
            clock.skipped_s += WAIT_S
        if step.number == 4 and why == "cut":
            control.cut = frozenset({first.task_id})
        if step.number == 4 and why == "stop":
            control.stop = True
        return service.answer(step, layout)

    with answering(exchange, answer, layout):
        engine.check_task(first)
        assert engine.generate([first]) == []
        assert control.figures.get(statistics.INFERENCE_GIVEN_UP, 0.0) == (1.0 if why == "away" else 0.0)
        assert not control.asking
        service.silent_from = 1 << 30
        control.stop = False
        [rollouts] = engine.generate([second])
    assert rollouts.task == second
    asked = layout.split(service.steps[3].observations)["observations"]
    np.testing.assert_array_equal(rollouts.samples[0].tensors["observations"][0], asked)


def test_late_answers_are_dropped() -> None:
    exchange = StepExchange()
    layout = StepLayout.of(network(PLAIN), num_envs=NUM_ENVS)
    late: list[ActStep] = []

    def answer(step: ActStep, layout: StepLayout) -> ActedStep | None:
        if step.number == 1:
            late.append(step)
            return None
        made = Service(PLAIN).answer
        old = made(late[0], layout)
        assert old is not None
        exchange.answer(old)
        return made(step, layout)

    def step(number: int) -> ActStep:
        observations = np.full((NUM_ENVS, 4), number, np.float32)
        return ActStep(number, number, observations.tobytes(), b"")

    with answering(exchange, answer, layout):
        assert exchange.ask(step(1), give_up=lambda: True) is None
        answered = exchange.ask(step(2), give_up=lambda: False)
    assert answered is not None
    assert answered.number == 2


async def test_answer_that_arrives_while_its_step_is_given_up_answers_no_other() -> None:
    exchange = StepExchange()
    exchange.attach()
    examined, asked_again = threading.Event(), threading.Event()

    class FirstAnswer:
        """The answer to step 1, which is given up, and followed by step 2, while the number is compared."""

        @property
        def number(self) -> int:
            examined.set()
            asked_again.wait(timeout=1.0)
            return 1

    def give_up_second() -> bool:
        asked_again.set()
        return False

    def step(number: int) -> ActStep:
        return ActStep(number, number, b"", b"")

    def play() -> ActedStep | None:
        exchange.ask(step(1), give_up=examined.is_set)
        return exchange.ask(step(2), give_up=give_up_second)

    def waiting() -> int | None:
        return None if exchange.step is None else exchange.step.number

    playing = asyncio.create_task(asyncio.to_thread(play))
    while waiting() is None:
        await asyncio.sleep(0.001)
    exchange.answer(cast("ActedStep", FirstAnswer()))
    while waiting() != 2:
        assert not playing.done(), "step 2 was answered by the answer to step 1"
        await asyncio.sleep(0.001)
    empty = np.zeros(0, np.float32)
    exchange.answer(ActedStep(2, version(0), empty, empty, empty))
    answered = await playing
    assert answered is not None
    assert answered.number == 2


def test_policies_are_checked_for_evaluations() -> None:
    exchange = StepExchange()
    policy = network(PLAIN)
    acting = RemoteActing(policy, exchange, EngineControl(), SystemClock(), num_envs=NUM_ENVS, wait_s=30.0)
    params = policy.init_params(np.random.default_rng(0))
    acting.check_policy(snapshot(0, params))
    refuses = partial(acting.check_policy, snapshot(0, {}))
    with pytest.raises(Exception, match="mlp"):
        refuses()
