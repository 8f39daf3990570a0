"""The path of trajectories beside raw JetStream: same broker settings, client library, payload sizes and concurrency.

Ours: encode records, prove their task, publish until acknowledged, and a trajectory store in its own process that
fetches, validates, writes payload and ledger in one transaction, and acknowledges. Raw: publish the same bytes, encoded
beforehand, until acknowledged, and a process that fetches and acknowledges. Both end when the stream, a work queue, is
empty: all was acknowledged. Tasks and records are made before the clock starts, as making them is the work of others.
"""

import asyncio
import gc
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop
from nats.aio.client import Client
from nats.js import JetStreamContext

from benchmarks.cartpole import alternating
from benchmarks.measured_apart import measured_apart
from benchmarks.payloads import VERSION, Payload, payloads
from benchmarks.process_tree import machine_busy_s, own_tree_cpu_s
from benchmarks.results import BenchResult, Goal, Row, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.stage import USER, Stage, stage
from benchmarks.training_run import THREADS, remove_folder
from tidegate.core.errors import DeadlineError, TidegateError
from tidegate.core.ids import RunId
from tidegate.core.records import Task, Trajectory
from tidegate.core.staleness import Lineage
from tidegate.launch.programs import ProcessSpec
from tidegate.runtime.freed_memory import keep_freed_memory
from tidegate.runtime.outbox import message_of
from tidegate.runtime.task_secret import derived_task_secret
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import SHARD
from tidegate.wire.task_proof import task_key

REPETITIONS = 5
RATIO_MIN = 0.7
# Publishes in flight at once, as from eight actors with two unacknowledged each.
CONCURRENCY = 16
STREAM_KIND = "TRAJECTORIES"
READER = "trajectory-store"
EMPTY_TIMEOUT_S = 120.0
EMPTY_POLL_S = 0.01
# No reader takes a message sooner: while many are left, asking the broker again and again is work of the bench alone.
READ_S_MIN = 50e-6
WARM_UP_MESSAGES = 100
ROUND_TIMEOUT_S = 600.0
# Nothing is trained here, so that everything stays in the store.
OVERRIDES = [
    "trajectory_store.max_resident_trajectories=100000",
    "trajectory_store.max_resident_bytes=4294967296",
]

Rollout = tuple[Task, list[Trajectory]]
Prepare = Callable[[int], Any]
Send = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One measurement: all messages of a payload, from the first encoded to the last acknowledged by its reader."""

    side: Side
    payload: str
    messages: int
    num_samples: int
    frame_bytes: int
    wall_s: float
    cpu_s: float
    others_cores: float

    @property
    def megabytes(self) -> float:
        """Of message bodies."""
        return self.frame_bytes * self.messages / 1e6


def run(setting: BenchSetting) -> BenchResult:
    """Both sides in turns, each with a broker and a reader of its own.

    Raises:
        UnavailableError: a process did not start, or did not take what it was sent.
    """
    done: list[list[Transfer]] = []
    for repetition in range(setting.repeat(REPETITIONS)):
        for side in alternating(repetition):
            folder = setting.folder / f"trajectories-{side}-{repetition}"
            done.append(_measure_side(setting, side, folder))
            remove_folder(folder)
            print_progress(
                f"trajectories {side} {repetition + 1}: "
                + ", ".join(f"{t.megabytes / t.wall_s:.1f} MB/s" for t in done[-1])
            )
    transfers = [transfer for of_round in done for transfer in of_round]
    return BenchResult(
        name="trajectories",
        rows=[
            figure for payload in payloads(quick=setting.quick) for figure in _rows(payload.name, transfers)
        ],
        samples=[
            Sample(
                side=transfer.side,
                label=transfer.payload,
                repetition=number // 2,
                work=transfer.megabytes,
                unit="MB",
                wall_s=transfer.wall_s,
                cpu_s=transfer.cpu_s,
                others_cores=transfer.others_cores,
                details={
                    "messages": transfer.messages,
                    "records": transfer.messages * transfer.num_samples,
                    "message_bytes": transfer.frame_bytes,
                },
            )
            for number, of_round in enumerate(done)
            for transfer in of_round
        ],
        notes=[
            f"{CONCURRENCY} publishes in flight at once on both sides; both readers fetch equally many a batch"
        ],
    )


def _rows(name: str, transfers: list[Transfer]) -> list[Row]:
    ours = [each for each in transfers if each.payload == name and each.side == "tidegate"]
    peer = [each for each in transfers if each.payload == name and each.side == "peer"]
    title = f"{name} ({ours[0].frame_bytes / 1e3:.1f} kB)"
    goal = Goal(RATIO_MIN, "at_least", "ratio")
    records = ours[0].num_samples
    return [
        row(
            title,
            "MB/CPU-s",
            [t.megabytes / t.cpu_s for t in ours],
            [t.megabytes / t.cpu_s for t in peer],
            goal=goal,
        ),
        row(
            title,
            "MB/s",
            [t.megabytes / t.wall_s for t in ours],
            [t.megabytes / t.wall_s for t in peer],
            goal=goal,
        ),
        row(
            title,
            "records/s",
            [records * t.messages / t.wall_s for t in ours],
            [records * t.messages / t.wall_s for t in peer],
        ),
    ]


def _measure_side(setting: BenchSetting, side: Side, folder: Path) -> list[Transfer]:
    """A round whose publisher is a process of its own: a service sets up its memory, and the other side does not."""
    return measured_apart(
        "benchmarks.trajectories",
        [side, str(setting.run_file), str(folder), *(["--quick"] if setting.quick else [])],
        list[Transfer],
        what=f"A round of {side}",
        timeout_s=ROUND_TIMEOUT_S,
    )


def _main(side: Side, run_file: str, folder: str, *options: str) -> None:
    if side == "tidegate":
        keep_freed_memory()
    done = uvloop.run(_round(Path(run_file), side, Path(folder), quick="--quick" in options))
    sys.stdout.buffer.write(msgspec.json.encode(done))


async def _round(run_file: Path, side: Side, folder: Path, *, quick: bool) -> list[Transfer]:
    services = ["trajectory_store"] if side == "tidegate" else []
    async with stage(run_file, folder=folder, services=services, overrides=OVERRIDES) as running:
        if side == "tidegate":
            return await _ours(running, payloads(quick=quick))
        return await _raw(running, payloads(quick=quick))


async def _ours(running: Stage, kinds: list[Payload]) -> list[Transfer]:
    channel = running.channel("trajectory_store", role="learner")
    store = TrajectoryStoreClient(channel)
    await store.open_lineage(Lineage(VERSION.lineage), learner_id="bench")
    secret = derived_task_secret(running.record.task_secret).encode()
    numbers = itertools.count()
    sent = 0
    transfers: list[Transfer] = []
    send = partial(_publish, running)
    for payload in kinds:

        def prepare(number: int, payload: Payload = payload) -> Rollout:
            records = payload.records(RunId(running.record.run_id), number, now_s=time.time())
            task = payload.task(RunId(running.record.run_id), number)
            return msgspec.structs.replace(task, key=task_key(task, secret)), records

        transfers.append(await _measure(running, "tidegate", payload, numbers, prepare=prepare, send=send))
        sent += (payload.messages + WARM_UP_MESSAGES) * payload.num_samples
    await channel.close()
    channel = running.channel("trajectory_store", role="operator")
    totals, _ = await TrajectoryStoreClient(channel).ledger()
    await channel.close()
    if (totals.available, totals.quarantined) != (sent, 0):
        raise TidegateError(
            f"The store holds {totals.available} of {sent} trajectories and refused {totals.quarantined} messages",
            why="the figures would be of another path than the one that trajectories take",
            fix=f"see {running.folder / 'trajectory_store.log'}",
        )
    return transfers


async def _publish(running: Stage, rollout: Rollout) -> None:
    """What an actor does with a finished rollout."""
    task, records = rollout
    frame, headers = message_of(records, of=task)
    await running.bus.publish(
        running.topology.trajectories(SHARD), frame, message_id=f"{task.task_id}:scored", headers=headers
    )


async def _raw(running: Stage, kinds: list[Payload]) -> list[Transfer]:
    durable, passwords = running.topology.trajectory_durable(SHARD), running.passwords
    url = running.record.broker.url
    batch = running.plan.services["trajectory_store"].fetch_messages_max
    command = [sys.executable, "-m", "benchmarks.peers.raw_consumer", url]
    command += [READER, passwords[READER], durable.stream, durable.name, str(batch)]
    running.supervisor.start(
        ProcessSpec("raw_consumer", command, running.folder / "raw_consumer.log", THREADS)
    )
    client = Client()
    await client.connect(url, user=USER, password=passwords[USER], inbox_prefix=f"_INBOX_{USER}")
    stream = JetStreamContext(client)
    numbers = itertools.count()
    transfers: list[Transfer] = []

    async def send(message: tuple[str, bytes]) -> None:
        message_id, body = message
        await stream.publish(running.topology.trajectories(SHARD), body, headers={"Nats-Msg-Id": message_id})

    for payload in kinds:

        def prepare(number: int, payload: Payload = payload) -> tuple[str, bytes]:
            return str(number), encode_frame(payload.records(RunId(running.record.run_id), number))

        transfers.append(await _measure(running, "peer", payload, numbers, prepare=prepare, send=send))
    await client.close()
    return transfers


async def _measure(
    running: Stage,
    side: Side,
    payload: Payload,
    numbers: "itertools.count[int]",
    *,
    prepare: Prepare,
    send: Send,
) -> Transfer:
    await _send_all(running, send, [prepare(each) for each in itertools.islice(numbers, WARM_UP_MESSAGES)])
    chosen = [prepare(each) for each in itertools.islice(numbers, payload.messages)]
    # An actor never holds thousands of records: no garbage collection may scan them while the clock runs.
    gc.collect()
    gc.freeze()
    cpu_s, busy_s, started_s = own_tree_cpu_s(), machine_busy_s(), time.monotonic()
    await _send_all(running, send, chosen)
    wall_s = time.monotonic() - started_s
    cpu_s = own_tree_cpu_s() - cpu_s
    return Transfer(
        side=side,
        payload=payload.name,
        messages=payload.messages,
        num_samples=payload.num_samples,
        frame_bytes=len(encode_frame(payload.records(RunId(running.record.run_id), 0))),
        wall_s=wall_s,
        cpu_s=cpu_s,
        others_cores=max(0.0, (machine_busy_s() - busy_s - cpu_s) / wall_s),
    )


async def _send_all(running: Stage, send: Send, messages: list[Any]) -> None:
    """``CONCURRENCY`` publishers share the messages; returns once the reader acknowledged everything."""
    left = iter(messages)

    async def publisher() -> None:
        for message in left:
            await send(message)

    await asyncio.gather(*(publisher() for _ in range(CONCURRENCY)))
    deadline_s = time.monotonic() + EMPTY_TIMEOUT_S
    stream = running.topology.stream(STREAM_KIND)
    while messages_left := (await running.bus.stream_state(stream)).messages:
        if time.monotonic() > deadline_s:
            raise DeadlineError(
                "What was published was not read in time", fix=f"see the logs in {running.folder}"
            )
        await asyncio.sleep(max(EMPTY_POLL_S, messages_left * READ_S_MIN))


if __name__ == "__main__":
    _main(cast("Side", sys.argv[1]), *sys.argv[2:])
