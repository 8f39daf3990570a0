"""Groups of programs from ROLLOUTS to TRAJECTORIES through a real broker: each tested in the service's own sandbox."""

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.broker import Broker
from tests.support.consumers import open_consumer
from tests.support.service_harness import channel_of_test, make_context, running
from tests.support.settings import make_settings
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, trajectory_id
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.environment import main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.wire.clients.environment import Completion, EnvironmentClient
from tidegate.wire.frame import decode_frame, encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, Topology

pytestmark = pytest.mark.integration
ENV = "arithmetic"
CASES = [{"arguments": [1, 2], "result": 3}, {"arguments": [20, 22], "result": 42}]
ANSWER = json.dumps({"function": "add", "cases": CASES})
PROMPT = "Write add(a, b)."
PROGRAMS = {
    "right": "def add(a, b):\n    return a + b",
    "wrong": "def add(a, b):\n    return a - b",
    # Passes where its tests run in the same program: it ends first, with success.
    "exits_as_if_it_had_passed": "import os\nos.write(1, b'2 passed\\n')\nos._exit(0)",
    "equals_everything": "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any(0)",
    "right_and_holds_all_sockets": "import os, socket, time\nkept = []\n"
    "for _ in range(6):\n    if os.fork() == 0: break\n"
    "try:\n    while True: kept.append(socket.socketpair())\nexcept OSError: time.sleep(600)\n"
    "def add(a, b): return a + b",
}
CONFIG = {
    "rewards": {"task": 0.0, "tests": 1.0},
    "verifiers": {"tests": {"kind": "code"}},
    "sandbox": {"memory_bytes": 210 << 20, "wall_s": 30.0, "cpu_s": 20.0},
}


def completion_of(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```"


def rollouts(task: str) -> list[Trajectory]:
    """One group: a rollout for each program."""
    task_id = TaskId(task)
    return [
        Trajectory(
            trajectory_id=trajectory_id(task_id, sample_index=index),
            run_id=RunId("test-run"),
            task_id=task_id,
            group_id=GroupId(task),
            group_size=len(PROGRAMS),
            spans=(VersionSpan(PolicyVersion(LineageName("0-a"), 3), 0, 2),),
            tensors={
                "tokens": np.array([5, 2], np.int32),
                "behavior_logprobs": np.full(2, -0.5, np.float32),
            },
            num_steps=2,
            prompt_id=PromptId("add"),
            prompt=PROMPT,
            answer=ANSWER,
            completion=completion_of(program),
            env_id=ENV,
            started_at_s=1.0,
            finished_at_s=2.0,
            trace_parent=f"00-{index + 1:032x}-{index + 1:016x}-00",
        )
        for index, program in enumerate(PROGRAMS.values())
    ]


async def test_rollouts_are_rewarded_by_their_tests_and_attacks_get_nothing(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, sandbox: LinuxSandbox
) -> None:
    del sandbox  # where programs cannot be isolated the service does not start
    settings = msgspec.structs.replace(
        make_settings(tmp_path, broker_url=nats.url),
        workload=WorkloadConfig(kind="text", env=ENV, num_samples=len(PROGRAMS)),
        policy=PolicyConfig(kind="char_lm"),
    )
    records = rollouts("task-1")
    ids = ",".join(record.trajectory_id for record in records)
    headers = {HEADER_TRAJECTORY_IDS: ids}
    await bus.publish(topology.rollouts(ENV), encode_frame(records), message_id="task-1", headers=headers)
    config = msgspec.convert(CONFIG, EnvironmentConfig)
    async with running(main.build, config, make_context("environment", settings, bus=bus)) as context:
        consumer = await open_consumer(bus, topology.trajectory_consumer(0))
        async with asyncio.timeout(120.0):
            while not (deliveries := await consumer.fetch(1, wait_s=1.0)):
                pass
        await consumer.close()
        client = EnvironmentClient(channel_of_test(context, "environment"))
        called = await client.score(
            ENV,
            [
                Completion("add", PROMPT, ANSWER, completion_of(PROGRAMS[name]), "carries-0")
                for name in ("right", "exits_as_if_it_had_passed")
            ],
        )
    scored = dict(zip(PROGRAMS, decode_frame(deliveries[0].data), strict=True))
    assert {name: record.reward for name, record in scored.items()} == {
        name: float(name == "right") for name in PROGRAMS
    }
    assert scored["right"].reward_components["tests"] == 1.0
    assert "out of memory" in scored["right_and_holds_all_sockets"].verifier_log
    assert [score.reward for score in called] == [1.0, 0.0]
