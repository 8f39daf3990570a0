"""Pulling a policy beside a raw gRPC stream over loopback: same library, chunk size and message options.

Ours reads the version's file, streams it, puts it together and checks every tensor's digest. The raw stream sends
chunks from memory with no codec, and its reader throws them away.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import uvloop

from benchmarks.cartpole import alternating
from benchmarks.peers.raw_stream import METHOD, OPTIONS, SERVICE
from benchmarks.process_tree import machine_busy_s, own_tree_cpu_s
from benchmarks.results import BenchResult, Goal, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.stage import stage
from benchmarks.training_run import THREADS, remove_folder
from tidegate.actor.main import FREED_BYTES_KEPT
from tidegate.core.errors import TidegateError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.launch.programs import ProcessSpec
from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.ports import LOOPBACK, pick_ports
from tidegate.wire.clients.weight_distribution import WeightDistributionClient
from tidegate.wire.digest import digest_of
from tidegate.wire.subjects import CHUNK_BYTES

REPETITIONS = 7
PULLS = 4
POLICY_MIB = 256
QUICK_POLICY_MIB = 64
NUM_TENSORS = 16
RATIO_MIN = 0.8
READY_TIMEOUT_S = 30.0
MIB = 1 << 20

Pull = Callable[[], Awaitable[int]]


def run(setting: BenchSetting) -> BenchResult:
    """Both servers run side by side; pulls alternate.

    Raises:
        UnavailableError: a process did not start.
    """
    folder = setting.folder / "weights"
    # As an actor's process does, which is who pulls.
    keep_freed_memory(FREED_BYTES_KEPT)
    result = uvloop.run(_run(setting, folder))
    remove_folder(folder)
    return result


async def _run(setting: BenchSetting, folder: Path) -> BenchResult:
    mib = QUICK_POLICY_MIB if setting.quick else POLICY_MIB
    samples: list[Sample] = []
    async with stage(setting.run_file, folder=folder, services=["weight_distribution"]) as running:
        [port] = pick_ports(1)
        address = f"{LOOPBACK}:{port}"
        command = [
            sys.executable,
            "-m",
            "benchmarks.peers.raw_stream",
            address,
            str(mib * MIB),
            str(CHUNK_BYTES),
        ]
        running.supervisor.start(ProcessSpec("raw_stream", command, folder / "raw_stream.log", THREADS))
        learner_channel = running.channel("weight_distribution", role="learner")
        ours_channel = running.channel("weight_distribution", role="actor")
        raw_channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        async with asyncio.timeout(READY_TIMEOUT_S):
            await raw_channel.channel_ready()
        pulls: dict[Side, Pull] = {
            "tidegate": await _ours(
                WeightDistributionClient(learner_channel), WeightDistributionClient(ours_channel), mib=mib
            ),
            "peer": _raw(raw_channel),
        }
        for pull in pulls.values():
            await pull()
        for repetition in range(setting.repeat(REPETITIONS)):
            for side in alternating(repetition):
                samples.append(await _measure(pulls[side], side, repetition, mib=mib))
            print_progress(
                f"weights {repetition + 1}: "
                + ", ".join(f"{each.side} {each.per_s:,.0f} MB/s" for each in samples[-2:])
            )
        await learner_channel.close()
        await ours_channel.close()
        await raw_channel.close()
    ours = sorted((each for each in samples if each.side == "tidegate"), key=lambda each: each.repetition)
    peer = sorted((each for each in samples if each.side == "peer"), key=lambda each: each.repetition)
    goal = Goal(RATIO_MIN, "at_least", "ratio")
    title = f"pull of {mib} MiB"
    return BenchResult(
        name="weights",
        rows=[
            row(
                title,
                "MB/CPU-s",
                [each.per_cpu_s for each in ours],
                [each.per_cpu_s for each in peer],
                goal=goal,
            ),
            row(title, "MB/s", [each.per_s for each in ours], [each.per_s for each in peer], goal=goal),
        ],
        samples=samples,
        notes=[
            f"{PULLS} pulls a measurement, {NUM_TENSORS} tensors, chunks of {CHUNK_BYTES >> 20} MiB",
            f"checking digests, part of every pull of ours, runs at {_digest_rate(mib):,.0f} MB/s on a core",
        ],
    )


async def _ours(learner: WeightDistributionClient, actor: WeightDistributionClient, *, mib: int) -> Pull:
    lineage = Lineage(LineageName("0-bench"))
    rng = np.random.default_rng(0)
    size = mib * MIB // NUM_TENSORS // 4
    tensors = {f"layer.{index}": rng.random(size, dtype=np.float32) for index in range(NUM_TENSORS)}
    snapshot = PolicySnapshot(PolicyVersion(lineage.name, 0), tensors)
    await learner.publish(snapshot, LineageTree().add(lineage))
    announcement, _ = await learner.head()
    if announcement is None:
        raise TidegateError("The published policy is not the head", fix="see weight_distribution's log")

    async def pull() -> int:
        pulled = await actor.pull(announcement, announcement.names)
        return sum(tensor.nbytes for tensor in pulled.values())

    return pull


def _raw(channel: grpc.aio.Channel) -> Pull:
    stream: Any = cast("Any", channel).unary_stream(f"/{SERVICE}/{METHOD}")

    async def pull() -> int:
        received = 0
        async for chunk in stream(b""):
            received += len(chunk)
        return received

    return pull


async def _measure(pull: Pull, side: Side, repetition: int, *, mib: int) -> Sample:
    cpu_s, busy_s, started_s = own_tree_cpu_s(), machine_busy_s(), time.monotonic()
    received = 0
    for _ in range(PULLS):
        received += await pull()
    wall_s, cpu_s = time.monotonic() - started_s, own_tree_cpu_s() - cpu_s
    return Sample(
        side=side,
        label=f"{PULLS} pulls of {mib} MiB",
        repetition=repetition,
        work=received / 1e6,
        unit="MB",
        wall_s=wall_s,
        cpu_s=cpu_s,
        others_cores=max(0.0, (machine_busy_s() - busy_s - cpu_s) / wall_s),
    )


def _digest_rate(mib: int) -> float:
    data = b"\1" * (mib * MIB)  # written, so that no page of it is mapped while it is read
    started_s = time.process_time()
    digest_of(data)
    return len(data) / 1e6 / (time.process_time() - started_s)
