"""The description of the run's environment between processes: in the run folder, and asked of the environment service.

The launcher writes it before the services start, the environment service answers with it, and actor and learner ask
that service, so that none of the others needs the environment or the package that provides it.
"""

from pathlib import Path

import grpc
import msgspec
import structlog

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.drain import Drain
from tidegate.runtime.files import replace_file
from tidegate.runtime.retrying import Backoff, FailedAttempt, StopWhenDraining, retry
from tidegate.wire.clients.environment import EnvironmentClient

# Beside the prompts, which the launcher writes as well. MessagePack, because JSON has no infinite bounds.
FILE = "environment.msgpack"
# A pod of the environment may have to pull its image first.
ASK_DEADLINE_S = 600.0
BACKOFF = Backoff(start_s=0.05, max_s=1.0)
ATTEMPTS_PER_REPORT = 10


class _Described(msgspec.Struct, frozen=True):
    """A description and the settings that it is of."""

    workload: WorkloadConfig
    description: EnvironmentDescription


def write_description(data: Path, workload: WorkloadConfig, description: EnvironmentDescription) -> None:
    """Keep the description of a workload's environment in the run's folder of data."""
    data.mkdir(parents=True, exist_ok=True)
    replace_file(data / FILE, msgspec.msgpack.encode(_Described(workload, description)))


def read_description(data: Path, workload: WorkloadConfig) -> EnvironmentDescription | None:
    """The description that was kept for exactly these settings; None where there is none."""
    try:
        kept = msgspec.msgpack.decode((data / FILE).read_bytes(), type=_Described)
    except (OSError, msgspec.MsgspecError, ConfigError):
        return None
    return kept.description if kept.workload == workload else None


async def ask_description(
    channel: grpc.aio.Channel,
    drain: Drain,
    log: structlog.stdlib.BoundLogger,
    *,
    deadline_s: float = ASK_DEADLINE_S,
) -> EnvironmentDescription:
    """The environment service's description, asked again until that service is ready.

    Raises:
        UnavailableError: it was not ready within ``deadline_s``, or this service drains.
        ConfigError: there is no such environment, what it needs is not installed, or it cannot be described.
    """

    def report(failed: FailedAttempt) -> None:
        if failed.number % ATTEMPTS_PER_REPORT == 1:
            log.info("description_awaited", attempt=failed.number, why=str(failed.error))

    try:
        return await retry(
            EnvironmentClient(channel).describe,
            BACKOFF,
            deadline_s=deadline_s,
            draining=StopWhenDraining(drain),
            on_retry=report,
        )
    except NotFoundError as error:
        raise ConfigError(f"workload.env: {error.what}", why=error.why, fix=error.fix) from error
