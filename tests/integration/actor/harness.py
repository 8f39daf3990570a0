"""Helpers for an actor's tests: policies on POLICY, tasks on TASKS, readers of its output."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from tests.support.broker import Broker
from tests.support.consumers import open_consumer
from tests.support.environments import CARTPOLE
from tests.support.service_harness import TIMEOUT_S, create_consumers
from tests.support.settings import make_settings
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import Engine, EngineControl
from tidegate.core.ids import LineageName, PolicyVersion, PromptId, RunId, TaskId
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task, TaskKind, Trajectory
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.policies import build_policy
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig, Settings, WorkloadConfig
from tidegate.runtime.consumer import Delivery
from tidegate.runtime.service import ServiceContext
from tidegate.wire.convert import task_to_bytes
from tidegate.wire.frame import decode_frame
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import ConsumerSpec, Topology

# Of the loops of an actor that fails: only one that waits for ever misses it.
END_TIMEOUT_S = 60.0
LINEAGE = LineageName("0-a")
TREE = LineageTree().add(Lineage(LINEAGE))
RUN = RunId("test-run")
SAMPLER = Sampler(max_new_tokens=4)
CHAR_LM = PolicyConfig(kind="char_lm", d_model=16, num_layers=2, num_heads=2, context_length=12)
MLP = PolicyConfig(kind="mlp", hidden=(8,))


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LINEAGE, step)


def mlp_params(seed: int) -> dict[str, Array]:
    return build_policy(CARTPOLE, MLP).init_params(np.random.default_rng(seed))


def char_lm_params(seed: int) -> dict[str, Array]:
    spec = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=12)
    return CharLm(spec, generator=torch.Generator().manual_seed(seed)).to_arrays()


def segments_settings(folder: Path, nats: Broker) -> Settings:
    workload = WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=4, unroll_length=8)
    return msgspec.structs.replace(make_settings(folder, broker_url=nats.url), workload=workload, policy=MLP)


def text_settings(folder: Path, nats: Broker) -> Settings:
    # Tasks may not ask for more samples than the run file: these ask for up to so many.
    workload = WorkloadConfig(kind="text", env="arithmetic", num_samples=4096, sampler=SAMPLER)
    return msgspec.structs.replace(
        make_settings(folder, broker_url=nats.url), workload=workload, policy=CHAR_LM
    )


async def announce_policy(
    bus: Bus, topology: Topology, step: int, tensors: Mapping[str, Array], *, inline: bool = True
) -> PolicySnapshot:
    """As weight distribution does for a small policy; without ``inline`` it has to be pulled."""
    snapshot = PolicySnapshot(version(step), dict(tensors), published_at_s=1.0)
    message, chunks = announce(snapshot, TREE)
    if inline:
        message.inline_payload = b"".join(chunks)
    await bus.publish(topology.policy("default"), message.SerializeToString(), message_id=f"policy-{step}")
    return snapshot


def segment(task_id: str, *, required: int = 0, env_id: str = "CartPole-v1") -> Task:
    return Task(
        task_id=TaskId(task_id),
        run_id=RUN,
        kind="segment",
        required_version=version(required),
        env_id=env_id,
        unroll_length=8,
        admitted_at_s=1.0,
        trace_parent=f"00-{1:032x}-{1:016x}-00",
    )


def group(task_id: str, *, num_samples: int = 2, kind: TaskKind = "group", required: int = 0) -> Task:
    problem = Arithmetic().problems("train", seed=0)[0]
    return Task(
        task_id=TaskId(task_id),
        run_id=RUN,
        kind=kind,
        required_version=version(required),
        num_samples=num_samples,
        prompt_id=PromptId(problem.prompt_id),
        prompt=problem.prompt,
        answer=problem.answer,
        env_id="arithmetic",
        sampler=SAMPLER,
        admitted_at_s=1.0,
    )


async def give(bus: Bus, topology: Topology, tasks: Sequence[Task]) -> None:
    for task in tasks:
        await bus.publish(topology.tasks("default"), task_to_bytes(task), message_id=f"{task.task_id}:1")


async def read(bus: Bus, spec: ConsumerSpec, count: int) -> list[Delivery]:
    """The next ``count`` messages, acknowledged one by one."""
    consumer = await open_consumer(bus, spec)
    deliveries: list[Delivery] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(deliveries) < count:
            for delivery in await consumer.fetch(count - len(deliveries), wait_s=1.0):
                await delivery.ack()
                deliveries.append(delivery)
    await consumer.close()
    return deliveries


async def trajectories(bus: Bus, topology: Topology, count: int) -> list[Trajectory]:
    """What arrived on TRAJECTORIES, in order."""
    deliveries = await read(bus, topology.trajectory_consumer(0), count)
    return [record for delivery in deliveries for record in decode_frame(delivery.data)]


async def count_of(bus: Bus, topology: Topology, stream: str) -> int:
    """Messages in a stream now."""
    return (await bus.stream_state(topology.stream(stream))).messages


async def progress_cleared(bus: Bus, topology: Topology, *task_ids: str) -> None:
    """Return once the partial rollouts of tasks are cleared: an empty message replaced each."""
    async with asyncio.timeout(TIMEOUT_S):
        for task_id in task_ids:
            while True:
                stored = await bus.last(topology.stream("PROGRESS"), topology.progress(TaskId(task_id)))
                if stored is None or not stored.data:
                    break
                await asyncio.sleep(0.02)


async def emptied(bus: Bus, topology: Topology, stream: str) -> None:
    """Return once a stream holds nothing."""
    async with asyncio.timeout(TIMEOUT_S):
        while await count_of(bus, topology, stream):
            await asyncio.sleep(0.02)


async def until_counts(bus: Bus, topology: Topology, **counts: int) -> None:
    """Return once streams hold so many messages; the broker handles an acknowledgement some time after it arrives."""
    async with asyncio.timeout(TIMEOUT_S):
        while {name: await count_of(bus, topology, name) for name in counts} != counts:
            await asyncio.sleep(0.02)


async def failed_loops(context: ServiceContext, config: ActorConfig, *, engine: Engine) -> set[str]:
    """Run an actor's loops as the lifecycle does, the first failure draining the others; the names that failed."""
    await create_consumers(context, config)
    parts = main.assemble(context, config, engine=engine, control=EngineControl())
    failed: set[str] = set()

    async def guarded(name: str, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except Exception:
            failed.add(name)
        finally:
            context.drain.request()

    async with asyncio.TaskGroup() as loops:
        tasks = [loops.create_task(guarded(name, loop), name=name) for name, loop in parts.loops.items()]
        await context.drain.wait()
        _, late = await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
        for task in late:
            task.cancel()
    assert not late, f"did not end by themselves: {sorted(task.get_name() for task in late)}"
    await context.channels.close()
    return failed
