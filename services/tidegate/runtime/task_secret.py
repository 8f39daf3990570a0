"""The secrets that the task queue signs tasks with and the trajectory store verifies them with.

A file has the current secret in its first line. In a cluster, whose Job rotates them, it also has the next one, which
becomes the current one at the next rotation, and the previous ones, each with the time until which it is accepted. The
store accepts all of them, so it does not matter which of the two pods has seen a rotation, and tasks that were signed
before one are finished after it. The file is read again when it changes.
"""

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.changing_file import ChangingFile
from tidegate.runtime.config import Settings

SECRET_BYTES_MIN = 32
# Seconds for which a secret is accepted after its rotation. Longer than any task: `task_queue.task_deadline_s`.
OVERLAP_S = 24 * 3600.0
# More rotations than this within the time refuse what was signed before the oldest of them.
PREVIOUS_MAX = 8
# Its key in the Secret of a cluster, and its file in the pods of the two services.
TASKS_FILE = "tasks.secret"
_LABEL = b"tidegate tasks"
_NEXT, _PREVIOUS = "next", "previous"


class PreviousSecret(msgspec.Struct, frozen=True):
    """A secret that was rotated out, accepted until ``until_s`` (Unix time)."""

    secret: str
    until_s: float


class TaskSecrets(msgspec.Struct, frozen=True):
    """The content of the file. ``following``: empty in a file that is not rotated."""

    current: str
    following: str = ""
    previous: tuple[PreviousSecret, ...] = ()

    def accepted(self, *, now_s: float) -> tuple[bytes, ...]:
        """What a task may be signed with, the most likely first."""
        kept = [each.secret for each in self.previous if each.until_s > now_s]
        return tuple(each.encode() for each in (self.current, *kept, self.following) if each)

    def rotated(self, *, now_s: float) -> "TaskSecrets":
        """The next secret is the current one, and this one is accepted for ``OVERLAP_S`` more.

        Without a next secret, which the store cannot know yet, the current one stays and gets a next one.
        """
        if not self.following:
            return self.with_next()
        previous = [each for each in self.previous if each.until_s > now_s][: PREVIOUS_MAX - 1]
        retired = PreviousSecret(self.current, now_s + OVERLAP_S)
        return TaskSecrets(self.following, new_task_secret(), (retired, *previous))

    def with_next(self) -> "TaskSecrets":
        """These, with a next secret in any case."""
        return msgspec.structs.replace(self, following=self.following or new_task_secret())

    def to_text(self) -> str:
        """The file."""
        lines = [self.current]
        if self.following:
            lines.append(f"{_NEXT} {self.following}")
        lines += [f"{_PREVIOUS} {each.secret} {each.until_s:.0f}" for each in self.previous]
        return "\n".join(lines) + "\n"


def parse_task_secrets(data: bytes) -> TaskSecrets:
    """The content of a file of secrets.

    Raises:
        ValueError: it is none, or a secret in it is too short.
    """
    first, *others = data.decode("ascii").strip().splitlines() or [""]
    current, following, previous = first.strip(), "", list[PreviousSecret]()
    for line in others:
        match line.split():
            case [word, secret] if word == _NEXT:
                following = secret
            case [word, secret, until_s] if word == _PREVIOUS:
                previous.append(PreviousSecret(secret, float(until_s)))
            case _:
                raise ValueError("a line after the first is neither `next SECRET` nor `previous SECRET TIME`")
    for secret in (current, *([following] if following else []), *(each.secret for each in previous)):
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"a secret has {len(secret)} bytes, at least {SECRET_BYTES_MIN} are needed")
    return TaskSecrets(current, following, tuple(previous[:PREVIOUS_MAX]))


def derived_task_secret(secret: str) -> str:
    """The secret of tasks, in hexadecimal, from the run's secret, which it does not reveal."""
    return hmac.digest(secret.encode(), _LABEL, "sha256").hex()


def new_task_secret() -> str:
    """A random secret of tasks: 64 hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES_MIN)


def read_task_secrets(settings: Settings) -> Callable[[], TaskSecrets] | None:
    """The present secrets of this run's tasks; None in a run without one, whose store believes every message.

    Raises:
        ConfigError: the file cannot be read, or holds no secrets.
    """
    if not settings.task_secret_path:
        return None
    return ChangingFile(
        Path(settings.task_secret_path),
        parse_task_secrets,
        what="secret of tasks",
        fix="`tidegate up` writes it; in a cluster mount the Secret into task_queue and trajectory_store",
    ).content


def task_secrets_of(text: str) -> TaskSecrets:
    """The secrets in a Kubernetes Secret, to rotate them.

    Raises:
        ConfigError: they cannot be read, so the previous ones are not known.
    """
    try:
        return parse_task_secrets(text.encode())
    except ValueError as error:
        raise ConfigError(
            f"{TASKS_FILE} of the Secret of call tokens cannot be read",
            why=str(error),
            fix="remove that key, and the Job writes it again; tasks in flight are refused once",
        ) from error
