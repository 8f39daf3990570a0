"""Creates the streams of a run as the broker's user ``bootstrap``.

``tidegate up`` does it before it starts services; in a cluster the Job ``streams`` does (``tidegate streams``).
"""

from tidegate.actor.config import ActorConfig
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.broker_password import broker_password
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.stream_creation import ConsumerSettings, create_streams
from tidegate.wire.subjects import Topology


async def connect_and_create_streams(
    settings: Settings, *, actor: ActorConfig, environment: EnvironmentConfig
) -> None:
    """Create or update the streams and consumers of a run, as the user that ``settings`` name.

    Raises:
        StaleFolderError: a stream exists with a shape that would lose messages to change.
        UnavailableError: the broker did not answer in time.
    """
    bus = await Bus.connect(
        settings.broker_url,
        user=settings.broker_user,
        password=broker_password(settings.broker_password, settings.broker_password_path),
        name="tidegate-streams",
        topology=Topology(settings.run),
        clock=SystemClock(),
        timeout_s=settings.broker_wait_s,
    )
    consumers = ConsumerSettings(
        task_ack_wait_s=actor.ack_wait_s,
        rollout_ack_wait_s=environment.ack_wait_s,
        unscored_groups_max=environment.max_ack_pending,
    )
    try:
        await create_streams(bus, settings, consumers)
    finally:
        await bus.close()
