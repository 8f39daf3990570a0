"""The secret that the task queue signs tasks with and the trajectory store verifies them with."""

import hmac
import secrets
from pathlib import Path

from tidegate.core.errors import ConfigError
from tidegate.runtime.config import Settings

SECRET_BYTES_MIN = 32
# Its key in the Secret of a cluster, and its file in the pods of the two services.
TASKS_FILE = "tasks.secret"
_LABEL = b"tidegate tasks"


def derived_task_secret(secret: str) -> str:
    """The secret of tasks, in hexadecimal, from the run's secret, which it does not reveal."""
    return hmac.digest(secret.encode(), _LABEL, "sha256").hex()


def new_task_secret() -> str:
    """A random secret of tasks: 64 hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES_MIN)


def read_task_secret(settings: Settings) -> bytes | None:
    """The secret of this run's tasks; None in a run without one, whose store believes every message.

    Raises:
        ConfigError: the file cannot be read, or is too short to be a secret.
    """
    if not settings.task_secret_path:
        return None
    path = Path(settings.task_secret_path)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"The secret of tasks {path} cannot be read",
            why=str(error),
            fix="`tidegate up` writes it; in a cluster mount the Secret into task_queue and trajectory_store",
        ) from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"The secret of tasks {path} has {len(secret)} bytes, at least {SECRET_BYTES_MIN} are needed"
        )
    return secret
