"""Proof that a message is of a task that the task queue admitted, by the service that it was given to.

The queue gives each task a key: the MAC of what it admitted under a secret that only it and the trajectory store hold.
An actor writes the MAC of its records under that key into a header, and never the key itself. The store derives the
key from the header's claim and so needs neither a call nor a table. Environment workers, which add rewards, pass the
header on: it covers ids, versions and tensors (``Frame.content_digest``), which do not change after the actor.

MACs are keyed BLAKE3: on texts as short as these it takes half of the time of HMAC-SHA-256.
"""

import hmac
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from blake3 import blake3

from tidegate.core.errors import RecordError
from tidegate.core.ids import (
    PolicyVersion,
    RunId,
    TaskId,
    TrajectoryId,
    parse_version,
    task_of,
    trajectory_id,
)
from tidegate.core.records import Task
from tidegate.wire.bounds import shown

MAC_BYTES = 16
# Of accepted secrets: the current one and those of the last rotations.
SECRETS_MAX = 16
# A lineage of 64 characters, and a step.
VERSION_CHARS_MAX = 96
VERSIONS_MAX = 256
# Numbers of samples whose suffixes are kept; a run has a handful.
GROUP_SIZES_MAX = 16
_SECRET_CONTEXT = "tidegate 2026-11-27 secret of tasks"
# A group; beyond it a claim is not believed.
SAMPLES_MAX = 4096
_PARTS = 4
_QUEUE = "queue"


class TaskClaim(msgspec.Struct, frozen=True):
    """What a task's key is bound to: how many samples it has, and the oldest version that may start it."""

    run_id: RunId
    task_id: TaskId
    num_samples: int
    required_version: PolicyVersion

    def key(self, secret: bytes) -> bytes:
        """The key of the task."""
        named = ("task", *msgspec.structs.astuple(self)[:3], str(self.required_version))
        return blake3(msgspec.msgpack.encode(named), key=_key_of_secret(secret)).digest()


class TaskProof(msgspec.Struct, frozen=True):
    """A verified header: the task of the message, and the digest of the records that its actor made."""

    claim: TaskClaim
    trajectory_ids: tuple[TrajectoryId, ...]
    digest: bytes


def task_key(task: Task, secret: bytes) -> bytes:
    """The key that a task is published with."""
    return TaskClaim(task.run_id, task.task_id, task.num_samples, task.required_version).key(secret)


def proof_of(task: Task, ids: Sequence[TrajectoryId], digest: bytes) -> str:
    """The header of records of ``task``; empty for a task without a key."""
    if not task.key:
        return ""
    mac = _mac(task.key, ids, digest)
    return f"{task.num_samples} {task.required_version} {digest.hex()} {mac.hex()}"


def open_proof(
    header: str, ids: Sequence[TrajectoryId], *, secrets: Sequence[bytes], run_id: RunId
) -> TaskProof:
    """Verify that the sender was given the task of these trajectories, under one of the accepted secrets.

    ``ids``: as the message claims them, whatever text they are; of a proof that is returned they are the task's.

    Raises:
        RecordError: there is no proof, or it is not of these trajectories.
    """
    parts = header.split(" ")
    if len(parts) != _PARTS or not ids:
        raise RecordError(
            "A message does not prove that the task queue admitted it",
            why="it names no trajectory, or has no header with the proof of its task",
            fix="only actors that were given a task may publish its trajectories",
        )
    try:
        # Cut, so that what is kept of parsed versions is bounded: a longer one is of no task.
        num_samples, required_version = int(parts[0]), _version_of(parts[1][:VERSION_CHARS_MAX])
        digest, mac = bytes.fromhex(parts[2]), bytes.fromhex(parts[3])
    except ValueError as error:
        raise RecordError("A proof of a task cannot be read", why=str(error)) from error
    claim = TaskClaim(run_id, task_of(ids[0]), num_samples, required_version)
    if not 0 < num_samples <= SAMPLES_MAX or not _is_proved(claim, ids, digest, mac=mac, secrets=secrets):
        raise RecordError(
            f"Trajectory {shown(ids[0])} and {len(ids) - 1} others are named by a message without a valid proof",
            why="the task queue did not admit them so, or the sender does not hold their task",
        )
    # A whole group in order, nearly always; a part of one is looked up.
    samples = [f"{claim.task_id}{suffix}" for suffix in _sample_suffixes(num_samples)]
    if samples != list(ids) and (len(set(ids)) < len(ids) or not set(samples).issuperset(ids)):
        raise RecordError(
            f"A message of task {shown(claim.task_id)} names trajectories that the task does not have"
        )
    return TaskProof(claim, tuple(ids), digest)


def _is_proved(
    claim: TaskClaim, ids: Sequence[TrajectoryId], digest: bytes, *, mac: bytes, secrets: Sequence[bytes]
) -> bool:
    for secret in secrets:  # noqa: SIM110  # a generator takes as long as one of its MACs
        if hmac.compare_digest(mac, _mac(claim.key(secret), ids, digest)):
            return True
    return False


def proof_of_queue(ids: Sequence[TrajectoryId], secret: bytes | None) -> str:
    """The task queue's own proof, for any trajectories; empty without a secret."""
    return "" if secret is None else f"{_QUEUE} {_queue_mac(secret, ids).hex()}"


def is_proof_of_queue(header: str, ids: Sequence[TrajectoryId], *, secrets: Sequence[bytes]) -> bool:
    """Whether the task queue made this proof of these trajectories, under one of the accepted secrets."""
    presented = header.encode(errors="replace")
    if not presented.startswith(f"{_QUEUE} ".encode()):
        return False
    return any(
        hmac.compare_digest(presented, f"{_QUEUE} {_queue_mac(secret, ids).hex()}".encode())
        for secret in secrets
    )


# Tasks of a moment require a handful of versions.
_version_of = lru_cache(maxsize=VERSIONS_MAX)(parse_version)


@lru_cache(maxsize=GROUP_SIZES_MAX)
def _sample_suffixes(num_samples: int) -> tuple[str, ...]:
    """What ``trajectory_id`` puts behind a task's id."""
    return tuple(trajectory_id(TaskId(""), sample_index=index) for index in range(num_samples))


@lru_cache(maxsize=SECRETS_MAX)
def _key_of_secret(secret: bytes) -> bytes:
    return blake3(secret, derive_key_context=_SECRET_CONTEXT).digest()


def _queue_mac(secret: bytes, ids: Sequence[TrajectoryId]) -> bytes:
    text = msgspec.msgpack.encode((_QUEUE, list(ids)))
    return blake3(text, key=_key_of_secret(secret)).digest(length=MAC_BYTES)


def _mac(key: bytes, ids: Sequence[TrajectoryId], digest: bytes) -> bytes:
    text = msgspec.msgpack.encode(("records", list(ids), digest))
    return blake3(text, key=key).digest(length=MAC_BYTES)
