"""Groups of completions on their way through the environment service: made, published, and read when scored."""

import asyncio

import numpy as np

from tests.support.consumers import open_consumer
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, trajectory_id
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.runtime.bus import Bus
from tidegate.runtime.consumer import Delivery
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, Topology

ENV = "arithmetic"


def group(task: str, *completions: str, log: str = "") -> list[Trajectory]:
    version = PolicyVersion(LineageName("0-a"), 3)
    task_id = TaskId(task)
    return [
        Trajectory(
            trajectory_id=trajectory_id(task_id, sample_index=index),
            run_id=RunId("test-run"),
            task_id=task_id,
            group_id=GroupId(task),
            group_size=len(completions),
            spans=(VersionSpan(version, 0, 2),),
            tensors={
                "tokens": np.array([5, 2], np.int32),
                "behavior_logprobs": np.full(2, -0.5, np.float32),
            },
            num_steps=2,
            prompt_id=PromptId("47+38"),
            prompt="47+38=",
            answer="085",
            completion=text,
            env_id=ENV,
            started_at_s=1.0,
            finished_at_s=2.0,
            trace_parent=f"00-{index + 1:032x}-{index + 1:016x}-00",
            verifier_log=log,
        )
        for index, text in enumerate(completions)
    ]


async def publish(
    bus: Bus, topology: Topology, body: bytes, records: list[Trajectory], *, attempt: int = 1
) -> None:
    ids = ",".join(record.trajectory_id for record in records)
    message_id = f"{records[0].task_id}-{attempt}"
    await bus.publish(
        topology.rollouts(ENV), body, message_id=message_id, headers={HEADER_TRAJECTORY_IDS: ids}
    )


async def scored_messages(bus: Bus, topology: Topology, count: int) -> list[Delivery]:
    consumer = await open_consumer(bus, topology.trajectory_consumer(0))
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60.0):
        while len(deliveries) < count:
            for delivery in await consumer.fetch(count - len(deliveries), wait_s=1.0):
                await delivery.ack()
                deliveries.append(delivery)
    await consumer.close()
    return deliveries


async def drained(bus: Bus, topology: Topology) -> None:
    async with asyncio.timeout(60.0):
        while (await bus.stream_state(topology.stream("ROLLOUTS"))).messages:
            await asyncio.sleep(0.02)
