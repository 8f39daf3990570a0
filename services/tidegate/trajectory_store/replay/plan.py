"""From the run file to the sizes of a replay buffer and its pace; refuses what could only stand still."""

import math

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.samples_per_insert import ReplayPace, check_pace, needed_slack
from tidegate.runtime.config import WorkloadConfig
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.replay.buffer import BufferSettings
from tidegate.trajectory_store.replay.selectors import HALF_LIVES_MAX, SelectorSettings


class ReplayPlan(msgspec.Struct, frozen=True):
    """What the store needs to replay. ``insert_units``: the most units one segment completes."""

    buffer: BufferSettings
    pace: ReplayPace
    insert_units: int
    seed: int


def plan_replay(
    config: TrajectoryStoreConfig, workload: WorkloadConfig, *, batch_size: int, max_lag: int, seed: int
) -> ReplayPlan | None:
    """The plan of a run; None without replay.

    Raises:
        ConfigError: the settings contradict each other, or could only stand still.
    """
    replay = config.replay
    if not replay.enabled:
        return None
    if workload.kind != "segments":
        raise ConfigError(
            f"trajectory_store.replay.unit is {replay.unit} with workload.kind {workload.kind}",
            why="only segments consist of transitions and sequences",
            fix="remove trajectory_store.replay",
        )
    num_steps, num_envs = workload.unroll_length, workload.num_envs
    is_sequence = replay.unit == "sequence"
    horizon = replay.sequence_length if is_sequence else replay.n_steps
    period = min(replay.sequence_period or num_steps, num_steps) if is_sequence else 0
    num_slots = math.ceil(replay.capacity / (num_steps * num_envs))
    # A segment completes its own units and those before it that waited for it: at most so many rows may begin one.
    rows = num_steps + horizon - 1
    starts = min(rows, math.ceil(rows / period) + rows // 2) if is_sequence else rows
    insert_units = starts * num_envs
    of_segment = math.ceil(num_steps / period) if is_sequence else num_steps
    # One more segment and batch than cannot stand still: at the least slack the two sides take turns, and each waits
    # for the other's next message.
    slack = replay.slack or (
        needed_slack(replay.samples_per_insert, batch_size=batch_size, insert_units=insert_units)
        + replay.samples_per_insert * insert_units
        + batch_size
    )
    pace = ReplayPace(
        samples_per_insert=replay.samples_per_insert,
        min_fill=replay.min_fill,
        slack=slack,
        batch_size=batch_size,
    )
    error = check_pace(
        pace,
        insert_units=of_segment * num_envs if not replay.samples_per_insert else insert_units,
        capacity=num_slots * of_segment * num_envs,
        uses_max=replay.uses_max,
        in_flight_max=(max_lag + 1) * batch_size,
    )
    if error is not None:
        raise error
    if replay.selector == "recency" and replay.recency_half_life * HALF_LIVES_MAX < replay.capacity:
        raise ConfigError(
            f"trajectory_store.replay.recency_half_life {replay.recency_half_life:g} is too short for capacity"
            f" {replay.capacity}",
            why="the oldest units would never be drawn",
            fix=f"set it to {math.ceil(replay.capacity / HALF_LIVES_MAX)} or more, or lower capacity",
        )
    return ReplayPlan(
        buffer=BufferSettings(
            num_slots=num_slots,
            num_steps=num_steps,
            num_envs=num_envs,
            horizon=horizon,
            period=period,
            uses_max=replay.uses_max,
            selector=SelectorSettings(
                selector=replay.selector,
                priority_exponent=replay.priority_exponent,
                recency_half_life=replay.recency_half_life,
            ),
            block_file_bytes=config.segment_bytes,
            flush=config.durability == "power_loss",
        ),
        pace=pace,
        insert_units=insert_units,
        seed=seed,
    )
