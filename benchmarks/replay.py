"""Replay of Atari transitions: inserts through the broker, samples through the store's socket, and what is kept.

Inserts are what actors do with finished segments (encode, publish until acknowledged) until the store has taken all;
samples are what a learner does with a batch: request, decode, commit with new priorities. CPU-seconds are those of
the whole process tree: this process, the broker and the store. Segments are of an untrained policy; the few that were
recorded are sent again and again until the buffer is full, as the store does not look for repetitions.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import uvloop

from benchmarks.atari_segments import GAMES, NUM_ENVS, NUM_STEPS, VERSION, segments
from benchmarks.disk import disk_bytes
from benchmarks.process_tree import machine_busy_s, own_tree_cpu_s
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.stage import Stage, stage
from benchmarks.training_run import remove_folder
from tidegate.actor.engines.port import Sample as Segment
from tidegate.core.errors import DeadlineError, TidegateError
from tidegate.core.ids import GroupId, PolicyVersion, RunId, TaskId, trajectory_id
from tidegate.core.records import Trajectory
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.trajectory_store.replay.blocks import encode_blocks
from tidegate.wire.clients.trajectory_store import Consumption, SampledUnits, TrajectoryStoreClient
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS

RUN_FILE = Path("runs/apex.yaml")
REPETITIONS = 2
RATE_MIN = 20_000.0
MB_MAX = 1024 * 1024 * 1024 / 1e6
CAPACITY, CAPACITY_QUICK = 1_000_000, 20_000
RECORDED, RECORDED_QUICK, RECORDED_OF_GAME = 24, 4, 8
BATCH = 512
BATCHES, BATCHES_QUICK = 200, 20
SELECTORS = ("uniform", "prioritised")
# Segments published at once, as by a few actors.
CONCURRENCY = 8
TAKEN_TIMEOUT_S = 300.0
TAKEN_POLL_S = 0.02
LEARNER = "bench"
LIMITS = StalenessLimits(max_lag=1_000_000, max_age_s=1e9)
SEGMENT_UNITS = NUM_ENVS * NUM_STEPS


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement: so many transitions."""

    transitions: int
    wall_s: float
    cpu_s: float
    others_cores: float


@dataclass(frozen=True, slots=True)
class Round:
    """One store's life: what went in and out, and what it kept, in MB of 10^6 bytes."""

    inserted: Part
    sampled: Part
    disk_mb: float
    memory_mb: float


class Stopwatch:
    """Wall and CPU time of everything since its start."""

    def __init__(self) -> None:
        self._cpu_s, self._busy_s, self._at_s = own_tree_cpu_s(), machine_busy_s(), time.monotonic()

    def part(self, transitions: int) -> Part:
        """What so many transitions cost."""
        cpu_s, wall_s = own_tree_cpu_s() - self._cpu_s, time.monotonic() - self._at_s
        others = max(0.0, (machine_busy_s() - self._busy_s - cpu_s) / wall_s)
        return Part(transitions, wall_s, cpu_s, others)


def run(setting: BenchSetting) -> BenchResult:
    """Both selectors in turns, then the size of each game's frames.

    Raises:
        UnavailableError: a process did not start.
        DeadlineError: the store did not take what it was sent.
    """
    capacity = CAPACITY_QUICK if setting.quick else CAPACITY
    recorded = list(segments(GAMES[0], count=RECORDED_QUICK if setting.quick else RECORDED))
    print_progress(f"replay: recorded {len(recorded)} segments of {GAMES[0]}")
    rounds: dict[str, list[Round]] = {selector: [] for selector in SELECTORS}
    for repetition in range(setting.repeat(REPETITIONS)):
        for selector in SELECTORS:
            folder = setting.folder / f"replay-{selector}-{repetition}"
            found = uvloop.run(
                _round(folder, recorded, selector=selector, capacity=capacity, quick=setting.quick)
            )
            remove_folder(folder)
            rounds[selector].append(found)
            print_progress(
                f"replay {selector}: {found.inserted.transitions / found.inserted.cpu_s:,.0f} inserts and"
                f" {found.sampled.transitions / found.sampled.cpu_s:,.0f} samples a CPU-second,"
                f" {found.disk_mb:.0f} + {found.memory_mb:.0f} MB"
            )
    games: list[Row] = []
    if not setting.quick:
        # Beside its frames a transition takes the same bytes in every game.
        kept = rounds[SELECTORS[0]][0]
        beside_frames_mb = kept.disk_mb + kept.memory_mb - _frames_mb(recorded)
        games = [_game_row(game, beside_frames_mb) for game in GAMES]
    return BenchResult(
        name="replay",
        rows=[*(each for selector in SELECTORS for each in _rows(selector, rounds[selector])), *games],
        samples=[
            Sample(
                "tidegate",
                f"{what} {selector}",
                number,
                part.transitions,
                "transitions",
                part.wall_s,
                part.cpu_s,
                part.others_cores,
            )
            for selector in SELECTORS
            for number, each in enumerate(rounds[selector])
            for what, part in (("insert", each.inserted), ("sample", each.sampled))
        ],
        notes=[
            f"batches of {BATCH}, 3 steps, {capacity:,} transitions resident; broker, store and learner's decoding"
            " included",
            f"sizes: files of the store and its memory, measured with {GAMES[0]}; frames of each game scaled up from"
            f" {RECORDED_OF_GAME} segments of an untrained policy",
        ],
    )


def _rows(selector: str, found: Sequence[Round]) -> list[Row]:
    goal = Goal(RATE_MIN, "at_least", "figure")
    return [
        row(
            f"insert, {selector}",
            "transitions/CPU-s",
            [each.inserted.transitions / each.inserted.cpu_s for each in found],
            goal=goal,
        ),
        row(
            f"sample, {selector}",
            "transitions/CPU-s",
            [each.sampled.transitions / each.sampled.cpu_s for each in found],
            goal=goal,
        ),
    ]


def _game_row(game: str, beside_frames_mb: float) -> Row:
    size_mb = beside_frames_mb + _frames_mb(list(segments(game, count=RECORDED_OF_GAME, seed=1)))
    print_progress(f"replay {game}: {size_mb:.0f} MB")
    return row(f"{CAPACITY:,} transitions of {game}", "MB", [size_mb], goal=Goal(MB_MAX, "at_most", "figure"))


def _frames_mb(made: Sequence[Segment]) -> float:
    """The blocks of a full buffer of segments like these."""
    num_bytes = sum(
        len(encode_blocks([tensor for name, tensor in each.tensors.items() if name.startswith("frames.")]))
        for each in made
    )
    return num_bytes / 1e6 / (len(made) * SEGMENT_UNITS) * CAPACITY


async def _round(
    folder: Path, recorded: Sequence[Segment], *, selector: str, capacity: int, quick: bool
) -> Round:
    overrides = [
        "workload.env=ALE/Pong-v5",
        f"workload.num_envs={NUM_ENVS}",
        f"workload.unroll_length={NUM_STEPS}",
        "policy={kind: q_cnn}",
        f"batch_size={BATCH}",
        f"staleness={{max_lag: {LIMITS.max_lag}, max_age_s: 1000000}}",
        "trajectory_store.replay={unit: transition, n_steps: 3, uses_max: 0, min_fill: 1000,"
        f" capacity: {capacity}, selector: {selector}}}",
    ]
    async with stage(RUN_FILE, folder=folder, services=["trajectory_store"], overrides=overrides) as running:
        channel = running.channel("trajectory_store", role="learner")
        store = TrajectoryStoreClient(channel)
        await store.open_lineage(Lineage(VERSION.lineage), learner_id=LEARNER)
        count = capacity // SEGMENT_UNITS
        inserted = await _insert(running, store, recorded, count=count)
        sampled = await _sample(store, batches=BATCHES_QUICK if quick else BATCHES)
        await channel.close()
        pid = next(view.pid for view in running.supervisor.view() if view.name == "trajectory_store")
        assert pid is not None, "the store answered just now"
        return Round(inserted, sampled, disk_bytes(folder / "trajectory_store") / 1e6, _memory_mb(pid))


async def _insert(
    running: Stage, store: TrajectoryStoreClient, recorded: Sequence[Segment], *, count: int
) -> Part:
    run_id = RunId(running.record.run_id)
    left = iter(range(count))
    watch = Stopwatch()

    async def publisher() -> None:
        for number in left:
            record = _record(recorded[number % len(recorded)], run_id, number, len(recorded))
            await running.bus.publish(
                running.topology.trajectories(0),
                encode_frame([record]),
                message_id=f"{record.task_id}:scored",
                headers={HEADER_TRAJECTORY_IDS: record.trajectory_id},
            )

    await asyncio.gather(*(publisher() for _ in range(CONCURRENCY)))
    deadline_s = time.monotonic() + TAKEN_TIMEOUT_S
    while (await running.bus.stream_state(running.topology.stream("TRAJECTORIES"))).messages:
        if time.monotonic() > deadline_s:
            raise DeadlineError("The store did not take what was sent", fix=f"see {running.folder}")
        await asyncio.sleep(TAKEN_POLL_S)
    part = watch.part(count * SEGMENT_UNITS)
    totals, _ = await store.ledger()
    if (totals.available, totals.quarantined) != (count, 0):
        raise TidegateError(f"The store holds {totals.available} of {count} segments")
    return part


def _record(segment: Segment, run_id: RunId, number: int, per_stream: int) -> Trajectory:
    task_id, now_s = TaskId(f"bench-{number:06}"), time.time()
    return Trajectory(
        trajectory_id=trajectory_id(task_id, sample_index=0),
        run_id=run_id,
        task_id=task_id,
        group_id=GroupId(task_id),
        group_size=1,
        spans=segment.spans,
        tensors=segment.tensors,
        num_steps=segment.num_steps,
        episodes=segment.episodes,
        env_id="bench",
        started_at_s=now_s,
        finished_at_s=now_s,
        stream_id=f"stream-{number // per_stream}",
        stream_position=number % per_stream,
    )


async def _sample(store: TrajectoryStoreClient, *, batches: int) -> Part:
    rng = np.random.default_rng(0)
    watch = Stopwatch()
    for step in itertools.count():
        if step == batches:
            return watch.part(batches * BATCH)
        version = PolicyVersion(VERSION.lineage, step)
        batch = await store.sample_batch(
            version, batch_size=BATCH, limits=LIMITS, max_wait_s=10.0, learner_id=LEARNER
        )
        if batch is None:
            raise DeadlineError("The store draws nothing")
        await store.commit_batch(
            batch.batch_id,
            version=version,
            consumptions=[
                Consumption(each.trajectory_id, Fresh(lag=step, span=0, age_s=1.0))
                for each in batch.rows
                if each.is_unused
            ],
            sampled=SampledUnits(batch.ids, rng.random(BATCH, dtype=np.float32) + np.float32(0.01), step),
        )
    raise AssertionError("the loop ends by its return")


def _memory_mb(pid: int) -> float:
    """Memory of a process that no file holds: pages of the rings and blocks are counted as files."""
    used = psutil.Process(pid).memory_full_info()
    return (used.rss - used.shared) / 1e6
