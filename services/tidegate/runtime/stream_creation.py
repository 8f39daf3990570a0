"""The streams and consumers of a run, which the broker's one user that may creates and updates.

Limits, copies and the consumers' times change in place; what would lose messages is refused.
"""

import msgspec

from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.live_settings import run_file_limits
from tidegate.runtime.service import stream_specs
from tidegate.wire.subjects import POOL, SHARD, ConsumerSpec, Topology


class ConsumerSettings(msgspec.Struct, frozen=True):
    """What the run file's sections of actors and environment workers say about their consumers.

    ``task_ack_wait_s``, ``rollout_ack_wait_s``: seconds without a heartbeat after which a message is delivered again.
    ``unscored_groups_max``: groups that all environment workers together may hold.
    """

    task_ack_wait_s: float
    rollout_ack_wait_s: float
    unscored_groups_max: int


def consumers_of(settings: Settings, consumers: ConsumerSettings) -> list[ConsumerSpec]:
    """The durable consumers of a run: for tasks, trajectories, and rollouts where an environment scores them."""
    topology, workload = Topology(settings.run), settings.workload
    max_running = run_file_limits(settings, settings.staleness).max_running
    specs = [
        topology.task_consumer(
            POOL,
            ack_wait_s=consumers.task_ack_wait_s,
            # In tasks: all running rollouts and one evaluation.
            max_running=max(1, max_running // workload.num_samples) + 1,
        ),
        topology.trajectory_consumer(SHARD),
    ]
    if workload.kind == "text":
        specs.append(
            topology.rollout_consumer(
                workload.label,
                ack_wait_s=consumers.rollout_ack_wait_s,
                max_running=consumers.unscored_groups_max,
            )
        )
    return specs


async def create_streams(bus: Bus, settings: Settings, consumers: ConsumerSettings) -> None:
    """Create or update everything that the services of a run wait for at the broker; repeating it changes nothing.

    Raises:
        StaleFolderError: a stream exists with a shape that would lose messages to change.
        UnavailableError: JetStream did not answer in time.
    """
    await bus.bootstrap(
        stream_specs(settings),
        consumers=consumers_of(settings, consumers),
        copies=settings.stream_copies,
    )
