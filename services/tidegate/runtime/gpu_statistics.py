"""The loop by which a service that computes on GPUs reports how busy they are, and their memory.

Waits for time. A GPU that cannot be read is logged, and its last values are reported no more.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from tidegate.catalogue import gpu as statistics
from tidegate.runtime.failure_log import FailureLog
from tidegate.runtime.nvml import GpuReader, GpuReading, open_gpus
from tidegate.runtime.service import ServiceContext, ServiceParts
from tidegate.runtime.stats_board import StatsBoard

PERIOD_S = 2.0


async def with_gpu_statistics(
    parts: ServiceParts, context: ServiceContext, *, find: Callable[[], GpuReader | None] = open_gpus
) -> ServiceParts:
    """The parts with one loop more, where the process sees a GPU."""
    reader = await asyncio.to_thread(find)
    if reader is None:
        return parts
    return dataclasses.replace(parts, loops={**parts.loops, "gpus": partial(follow_gpus, context, reader)})


async def follow_gpus(context: ServiceContext, reader: GpuReader) -> None:
    """Read the GPUs once a period until draining."""
    note_failure = FailureLog("tidegate.gpus", event="gpus_not_read", label="source")
    read_at_s = context.clock.monotonic_s()
    known: list[GpuReading] = []
    while not await context.drain.sleep(PERIOD_S):
        try:
            readings = await asyncio.to_thread(reader.read)
        except OSError as error:
            note_failure("nvml", error)
            readings = []
        now_s = context.clock.monotonic_s()
        report(context.stats, readings, before=known, seconds=now_s - read_at_s)
        read_at_s, known = now_s, readings


def report(
    stats: StatsBoard, readings: Sequence[GpuReading], *, before: Sequence[GpuReading], seconds: float
) -> None:
    """Put readings on the board; ``before``: those of ``seconds`` ago, of which what is not read now is cleared."""
    stats.set(statistics.GPUS, float(len(readings)))
    busy = [each.busy_ratio for each in readings if each.busy_ratio is not None]
    stats.add(statistics.GPU_BUSY_S, seconds * sum(busy) / len(busy) if busy else 0.0)
    for each in readings:
        name = str(each.index)
        stats.set(statistics.GPU_MEMORY_USED.member(name), float(each.memory_used_bytes))
        stats.set(statistics.GPU_MEMORY.member(name), float(each.memory_bytes))
        if each.busy_ratio is not None:
            stats.set(statistics.GPU_UTILISATION.member(name), each.busy_ratio)
    for gone in {each.index for each in before} - {each.index for each in readings}:
        for family in (statistics.GPU_UTILISATION, statistics.GPU_MEMORY_USED, statistics.GPU_MEMORY):
            stats.clear(family.member(str(gone)))
