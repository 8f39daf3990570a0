"""Malformed calls and messages to real services on a real broker: each is answered or counted, and nothing ends.

One call in four is unauthorised (another role, no credential, or an invalid token) and is refused whatever it holds.
One message in four is signed with the key of a task, as only an actor that was given it can.
Then the services restart on the same disk and streams, and training resumes.

A failure prints its seed and the call; ``TIDEGATE_FUZZ_SEED`` repeats it.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import numpy as np
import psutil
import pytest
from google.protobuf.descriptor import MethodDescriptor
from structlog.testing import capture_logs

from tests.integration.inference.serving import inference_settings, serving
from tests.support.broker import Broker, free_port
from tests.support.call_credentials import accepted, channel_as, permitted_channel
from tests.support.calls import path_of, status_of
from tests.support.fuzzing import FLOATS, INTEGERS, TEXTS, Fuzzer
from tests.support.service_harness import POLL_S, make_context, running
from tests.unit.trajectory_store.building import MAIN, make_group, make_trajectory
from tidegate.actor import main as actor
from tidegate.actor.config import ActorConfig
from tidegate.admission import main as admission
from tidegate.admission.config import AdmissionConfig
from tidegate.core.errors import BackpressureError, ConflictError, RecordError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TaskId
from tidegate.core.records import EpisodeEnd, StageTiming, Task, Trajectory, VersionSpan
from tidegate.core.staleness import Lineage
from tidegate.environment import main as environment
from tidegate.environment.config import EnvironmentConfig
from tidegate.learner import main as learner
from tidegate.learner.config import LearnerConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.call_credentials import FixedToken
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.outbox import message_of
from tidegate.runtime.rpc import RpcServer, open_channel
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.task_secret import new_task_secret
from tidegate.task_queue import main as task_queue
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.trajectory_store import main as trajectory_store
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.reading import LEDGER_FILE, totals
from tidegate.trajectory_store.verifying import verify
from tidegate.v1 import (
    actor_service_pb2,
    admission_service_pb2,
    environment_service_pb2,
    externalscaler_pb2,
    inference_service_pb2,
    learner_service_pb2,
    lifecycle_service_pb2,
    policy_pb2,
    snapshot_service_pb2,
    task_queue_service_pb2,
    trajectory_pb2,
    trajectory_store_service_pb2,
    weight_distribution_service_pb2,
)
from tidegate.weight_distribution import main as weight_distribution
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.wire.call_permissions import ROLES, callers_of
from tidegate.wire.clients.admission import AdmissionClient
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.frame import encode_frame
from tidegate.wire.progress import Progress, SampleProgress, encode_progress
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, POOL, Topology
from tidegate.wire.task_proof import task_key

pytestmark = pytest.mark.integration

SERVICES: dict[str, tuple[Any, object, tuple[Any, ...]]] = {
    "trajectory_store": (
        trajectory_store.build,
        TrajectoryStoreConfig(),
        (trajectory_store_service_pb2, snapshot_service_pb2),
    ),
    "task_queue": (task_queue.build, TaskQueueConfig(), (task_queue_service_pb2, snapshot_service_pb2)),
    "admission": (admission.build, AdmissionConfig(), (admission_service_pb2, externalscaler_pb2)),
    "environment": (environment.build, EnvironmentConfig(), (environment_service_pb2,)),
    "weight_distribution": (
        weight_distribution.build,
        WeightDistributionConfig(reconcile_period_s=0.2),
        (weight_distribution_service_pb2, snapshot_service_pb2),
    ),
    "actor": (actor.build, ActorConfig(), (actor_service_pb2,)),
    "learner": (
        learner.build,
        LearnerConfig(lease_wait_s=0.1, cache_dir=""),
        (learner_service_pb2, snapshot_service_pb2),
    ),
}
KNOWN = (
    "t1",
    "t1.0",
    "t2.0",
    "learner-0",
    "CartPole-v1",
    "arithmetic",
    "failed",
    "stale",
)
# A poll is held for at most 30 s, and a stream for as long as its caller wants.
CALL_S = 120.0
PUBLISH_S = 1.0
# What a caller who knows a run's names has beyond one who does not.
KNOWN_OF_THE_RUN = ("0-aaaa", "1-bbbb", "0-aaaa@0#1")
STREAMS_WITHOUT_END = {"StreamIsActive"}
# Of messages; the others have no proof of a task, or another one's.
SIGNED_SHARE = 0.25
# Neither is what a caller did wrong.
DEFECTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
DEFECT_EVENT = "call_failed"
# A caller without the right credential: another role's, none, or a made-up one.
STRANGERS_SHARE = 0.25
REFUSALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
TRAINED_TIMEOUT_S = 120.0
PROGRESS = encode_progress(
    Progress(
        run_id=RunId("test-run"),
        task_id=TaskId("t1"),
        attempt=1,
        num_samples=1,
        started_at_s=1.0,
        max_new_tokens=8,
        samples=(
            SampleProgress(
                index=0,
                tokens=np.arange(4, dtype=np.int32),
                logprobs=np.full(4, -1.0, np.float32),
                spans=(VersionSpan(PolicyVersion(MAIN, 0), 0, 4),),
            ),
        ),
    )
)
IN_FLIGHT_MAX = 8
TASK_SECRET_FILE = "task_secret"
# Memory and open files are read so many times. All services are in this process, with the test's own clients.
NUM_SAMPLES = 20
FILES_MORE_MAX = 64
MEMORY_MORE_MAX_MB = 256.0


class Usage(NamedTuple):
    """What this process holds."""

    memory_mb: float
    num_files: int


def usage_now() -> Usage:
    process = psutil.Process()
    return Usage(process.memory_info().rss / 1e6, process.num_fds())


class Target(NamedTuple):
    """One method of one service."""

    service: str
    method: MethodDescriptor


MODULES = {name: modules for name, (_, _, modules) in SERVICES.items()} | {
    "inference": (inference_service_pb2,),
    "lifecycle": (lifecycle_service_pb2,),
}
TARGETS = [
    Target(name, method)
    for name, modules in MODULES.items()
    for module in modules
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in STREAMS_WITHOUT_END
]


@asynccontextmanager
async def learning(settings: Settings, bus: Bus) -> AsyncGenerator[None]:
    """The learner until its end: it leaves its run to the learner of a lineage that a fuzzed call opened."""
    build, config, _ = SERVICES["learner"]
    with suppress(ConflictError):
        async with running(build, config, make_context("learner", settings, bus=bus)):
            yield


@asynccontextmanager
async def platform(tmp_path: Path, nats: Broker, bus: Bus) -> AsyncGenerator[dict[str, str]]:
    """The addresses of the services, each with its loops; leaving fails if a loop ended by an error."""
    settings = msgspec.structs.replace(
        inference_settings(tmp_path, nats), task_secret_path=str(tmp_path / TASK_SECRET_FILE)
    )
    async with AsyncExitStack() as stack:
        for name, (build, config, _) in SERVICES.items():
            if name == "learner":
                await stack.enter_async_context(learning(settings, bus))
                continue
            await stack.enter_async_context(running(build, config, make_context(name, settings, bus=bus)))
        await stack.enter_async_context(serving(settings, bus))
        # The call that every service has; no role may drain here, or the first one would end the test.
        board = StatsBoard(service="admission", instance="admission-0", started_at_s=0.0)
        lifecycle = RpcServer([LifecycleServicer(board, Drain(), SystemClock()).registration()], accepted())
        address = f"127.0.0.1:{free_port()}"
        await lifecycle.start(address)
        stack.push_async_callback(lifecycle.stop, grace_s=0.0)
        yield {name: settings.addresses[name][0] for name in (*SERVICES, "inference")} | {
            "lifecycle": address
        }


class Callers:
    """The channels to one service: of who may call a method, and of strangers, one of whom is drawn."""

    def __init__(self, address: str) -> None:
        self._permitted = permitted_channel(address)
        self._of_roles = {role: channel_as(role, address) for role in ROLES}
        self._unknown = (
            open_channel(address, None),
            open_channel(address, FixedToken("an-invalid-token")),
        )

    def draw(self, method: MethodDescriptor, rng: random.Random) -> tuple[grpc.aio.Channel, bool]:
        """A channel, and whether it is a stranger's."""
        callers = callers_of(method.containing_service.full_name, method.name)
        if callers is None or rng.random() > STRANGERS_SHARE:  # `wire.call_permissions.PUBLIC`
            return self._permitted, False
        others = [channel for role, channel in self._of_roles.items() if role not in callers]
        return rng.choice((rng.choice(others), *self._unknown)), True

    @property
    def permitted(self) -> grpc.aio.Channel:
        """Each method as a role that may call it."""
        return self._permitted

    async def close(self) -> None:
        """Close them all."""
        for channel in (self._permitted, *self._of_roles.values(), *self._unknown):
            await channel.close()


def hostile(record: Trajectory, rng: random.Random) -> Trajectory:
    """The record with something in it that no actor may send."""
    steps, number, text = record.num_steps, rng.choice(FLOATS), rng.choice(TEXTS)
    count = rng.choice(INTEGERS)
    version = PolicyVersion(rng.choice((MAIN, LineageName("9-ffff"), LineageName(text))), count)
    changes: tuple[dict[str, Any], ...] = (
        {"reward": number},
        {"num_steps": count},
        {"group_size": count},
        {"length_tokens": count},
        {"started_at_s": number},
        {"finished_at_s": number},
        {"curriculum_bin": text},
        {"run_id": RunId(text)},
        {"spans": (VersionSpan(version, 0, steps),)},
        {"spans": (VersionSpan(record.spans[0].version, count, steps),)},
        {"spans": ()},
        {"episodes": (EpisodeEnd(number, count, count),)},
        {"stages": (StageTiming(text, "actor-0", number, 1.0),)},
        {"tensors": {}},
        {"tensors": record.tensors | {"behavior_logprobs": np.full(steps, number, np.float32)}},
        {"tensors": record.tensors | {"tokens": np.zeros((1,) * 40, np.int64)}},
        {"tensors": {text: np.zeros(rng.randrange(20_000), np.uint8)}},
    )
    return msgspec.structs.replace(record, **rng.choice(changes))


def signed(fuzzer: Fuzzer, rng: random.Random, number: int, secret: bytes) -> tuple[bytes, dict[str, str]]:
    """A message as only the holder of a task can make it: hostile records, or a frame that is damaged afterwards."""
    task = Task(
        task_id=TaskId(f"s{number}"),
        run_id=RunId("test-run"),
        kind="segment",
        required_version=PolicyVersion(MAIN, rng.randrange(3)),
        num_samples=rng.choice((1, 1, 2)),
    )
    task = msgspec.structs.replace(task, key=task_key(task, secret))
    records = make_group(task.task_id, task.num_samples, version=task.required_version)
    records[-1] = hostile(records[-1], rng)
    with suppress(RecordError):  # what this program's own encoder refuses, another may send
        frame, headers = message_of(records, of=task)
        return (fuzzer.damaged(frame) if rng.random() < 0.25 else frame), headers
    frame, headers = message_of(make_group(task.task_id, task.num_samples), of=task)
    return fuzzer.damaged(frame), headers


async def send(
    bus: Bus, topology: Topology, fuzzer: Fuzzer, rng: random.Random, number: int, *, secret: bytes
) -> None:
    """One malformed message on one subject, a quarter of them signed with the key of a task."""
    if rng.random() < SIGNED_SHARE:
        subject = rng.choice((topology.trajectories(0), topology.rollouts("CartPole-v1")))
        data, headers = signed(fuzzer, rng, number, secret)
        await publish(bus, subject, data[:200_000], f"fuzz-{number}", headers)
        return
    frame = encode_frame([make_trajectory(f"f{number}")])
    announcement = fuzzer.message(policy_pb2.PolicyAnnouncement.DESCRIPTOR).SerializeToString()
    task = fuzzer.message(trajectory_pb2.Task.DESCRIPTOR).SerializeToString()
    subject, body = rng.choice(
        (
            (topology.trajectories(0), frame),
            (topology.tasks(POOL), task),
            (topology.rollouts("CartPole-v1"), frame),
            (topology.policy("default"), announcement),
            (topology.progress(TaskId(rng.choice(("t1", "unknown")))), PROGRESS),
            (topology.control("task_queue"), b'{"max_lag": 1e400}'),
            (topology.event("evaluation"), task),
            (topology.stats("actor"), task),
        )
    )
    data = fuzzer.damaged(body)[:200_000]
    if subject == topology.stats("actor"):
        await bus.publish_core(subject, data)
    else:
        headers = {HEADER_TRAJECTORY_IDS: rng.choice(("", "a b,,c", f"f{number}.0"))}
        await publish(bus, subject, data, f"fuzz-{number}", headers)


async def publish(bus: Bus, subject: str, data: bytes, message_id: str, headers: dict[str, str]) -> None:
    """Store a message, or learn that its stream is full: a fuzzed call may have stopped the readers of tasks."""
    async with asyncio.timeout(CALL_S):
        while True:
            # A busy broker is slower than a short deadline; under the same id, the message is stored once.
            with suppress(UnavailableError):
                with suppress(BackpressureError):
                    await bus.publish(
                        subject, data, message_id=message_id, headers=headers, deadline_s=PUBLISH_S
                    )
                return


async def fuzz(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, *, known: tuple[str, ...], num_calls: int
) -> None:
    """``num_calls`` calls, and a message for each fifth of them. ``known``: names that mean something to services."""
    seed = int(os.environ.get("TIDEGATE_FUZZ_SEED") or random.randrange(2**32))
    sys.stdout.write(f"seed {seed}\n")
    rng = random.Random(seed)
    fuzzer = Fuzzer(rng, known=known)
    statuses: Counter[str] = Counter()
    failed: list[str] = []
    places = asyncio.Semaphore(IN_FLIGHT_MAX)
    secret = new_task_secret()
    (tmp_path / TASK_SECRET_FILE).write_text(secret, encoding="ascii")
    with capture_logs() as lines:
        async with platform(tmp_path, nats, bus) as addresses, asyncio.TaskGroup() as group:
            callers = {name: Callers(address) for name, address in addresses.items()}
            store = TrajectoryStoreClient(callers["trajectory_store"].permitted)
            await store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=[])
            started_at_s = time.monotonic()

            async def call(target: Target, requests: list[bytes]) -> None:
                channel, is_stranger = callers[target.service].draw(target.method, rng)
                async with places:
                    status = await status_of(channel, target.method, requests, timeout_s=CALL_S)
                name = "lost" if status is None else status.name
                statuses[f"{name} of a stranger" if is_stranger else name] += 1
                if status in DEFECTS or (is_stranger and status is not None and status not in REFUSALS):
                    failed.append(f"{path_of(target.method)} {name} of {[each[:200] for each in requests]}")

            tasks: list[asyncio.Task[None]] = []
            usage: list[Usage] = []
            for number in range(num_calls):
                if number % max(1, num_calls // NUM_SAMPLES) == 0:
                    lines[:] = [line for line in lines if line["event"] == DEFECT_EVENT]
                    usage.append(usage_now())
                target = rng.choice(TARGETS)
                count = rng.choice((0, 1, 1, 2, 3)) if target.method.client_streaming else 1
                requests = [fuzzer.request(target.method.input_type) for _ in range(count)]
                if number % 5 == 0:
                    await send(bus, topology, fuzzer, rng, number, secret=secret.encode())
                tasks.append(group.create_task(call(target, requests)))
                if len(tasks) >= 4 * IN_FLIGHT_MAX:
                    await tasks.pop(0)
            await asyncio.gather(*tasks)
            took_s = time.monotonic() - started_at_s
            sys.stdout.write(f"seed {seed}: {num_calls / took_s:.0f} calls/s, {dict(statuses)}\n")
            sys.stdout.write("".join(f"{each.memory_mb:.0f} MB, {each.num_files} files\n" for each in usage))
            # Every service still answers what is right, and the ledger is what the store wrote.
            await store.ledger()
            ledger = tmp_path / "trajectory_store" / LEDGER_FILE
            assert verify(ledger).findings == []
            accounted = totals(ledger)
            assert accounted.trained_twice == 0
            assert accounted.dropped["invalid"] > 0, "what is signed gets as far as the ledger"
            for each in callers.values():
                await each.close()
    # The first half fills caches and opens connections.
    half, end = usage[NUM_SAMPLES // 2], usage[-1]
    assert end.num_files <= half.num_files + FILES_MORE_MAX, usage
    assert end.memory_mb <= half.memory_mb + MEMORY_MORE_MAX_MB, usage
    defects = [line for line in lines if line["event"] == DEFECT_EVENT]
    assert not failed, f"seed {seed}: {failed[:5]} {defects[:3]}"
    assert sum(statuses.values()) == num_calls
    assert statuses["INVALID_ARGUMENT"] > num_calls / 10
    assert statuses["PERMISSION_DENIED of a stranger"] > 0 < statuses["UNAUTHENTICATED of a stranger"]
    await train_on(tmp_path, nats, bus)


async def train_on(tmp_path: Path, nats: Broker, bus: Bus) -> None:
    """Start the services on what is left on disk and in the streams, and wait for a commit of the learner."""
    async with platform(tmp_path, nats, bus) as addresses:
        admission_channel = permitted_channel(addresses["admission"])
        store_channel = permitted_channel(addresses["trajectory_store"])
        # An operator may pause, and a fuzzed call may have been an operator's.
        await AdmissionClient(admission_channel).set_paused(paused=False, reason="")
        store = TrajectoryStoreClient(store_channel)
        before = (await store.ledger())[0].trained
        async with asyncio.timeout(TRAINED_TIMEOUT_S):
            while (await store.ledger())[0].trained <= before:
                await asyncio.sleep(POLL_S)
        await admission_channel.close()
        await store_channel.close()
    ledger = tmp_path / "trajectory_store" / LEDGER_FILE
    assert verify(ledger).findings == []
    assert totals(ledger).trained_twice == 0


BOTH_CALLERS = pytest.mark.parametrize(
    "known", [(*KNOWN_OF_THE_RUN, *KNOWN), KNOWN], ids=["with the lineage", "without the lineage"]
)


@BOTH_CALLERS
async def test_malformed_calls_and_messages_are_answered_and_end_nothing(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, known: tuple[str, ...]
) -> None:
    await fuzz(tmp_path, nats, bus, topology, known=known, num_calls=1000)


@BOTH_CALLERS
@pytest.mark.extended
@pytest.mark.timeout(7200)
async def test_many_malformed_calls_and_messages_are_answered_and_end_nothing(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, known: tuple[str, ...]
) -> None:
    num_calls = int(os.environ.get("TIDEGATE_FUZZ_CALLS") or 20_000)
    await fuzz(tmp_path, nats, bus, topology, known=known, num_calls=num_calls)
