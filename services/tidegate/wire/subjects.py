"""The one table of streams, subjects, limits and retention.

Every subject begins with ``tg.<run>.`` and every stream name ends in the run id; run ids are never reused, because a
deleted file stream can come back with old messages when its name is created again at once. Versions and trajectory
ids travel in headers and envelopes, never in subjects.
"""

import re
from typing import Literal

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.ids import RunId, TaskId

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Inline bytes a message may contain, headers included; a stream caps one message at twice that, the broker at four
# times.
MESSAGE_BYTES_MAX = 512 * KIB
STREAM_MESSAGE_BYTES_MAX = MIB
BROKER_PAYLOAD_BYTES_MAX = 2 * MIB
CHUNK_BYTES = MIB
# A payload up to this size is part of its announcement: a message more costs both sides half a millisecond.
FIRST_CHUNK_BYTES = 256 * KIB

HEADER_MESSAGE_ID = "Nats-Msg-Id"
HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
HEADER_TRACE_PARENT = "traceparent"
HEADER_REASON = "Tidegate-Reason"
HEADER_SOURCE = "Tidegate-Source"
# Set when the body is a PayloadReference and not a frame.
HEADER_REFERENCE = "Tidegate-Reference"
# Ids in a message, comma-joined: readable without decoding, so that a body that cannot be decoded can still
# be recorded as dropped in the ledger.
HEADER_TRAJECTORY_IDS = "Tidegate-Trajectories"
HEADER_TASK_PROOF = "Tidegate-Task"

# The pool of actors that takes tasks, and the one shard of the trajectory store.
POOL = "default"
SHARD = 0

# The first token of a subject after the run, and the stream that keeps it; statistics have none.
_STREAMS_BY_TOKEN = {
    "task": "TASKS",
    "roll": "ROLLOUTS",
    "traj": "TRAJECTORIES",
    "part": "PROGRESS",
    "ver": "POLICY",
    "ctl": "CONTROL",
    "evt": "EVENTS",
    "bad": "QUARANTINE",
    "stats": "statistics",
}
# Subjects outside of a run: a connection's own inbox.
REPLIES = "replies"

# What the broker allows in neither; a run has one environment, so two names cannot become one.
_NO_WORD = re.compile(r"[^A-Za-z0-9_:=-]")
RUN_ID_PATTERN = re.compile(r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")


def stream_of_subject(subject: str) -> str:
    """The stream of a run's subject without the run, such as ``TASKS``; ``statistics``, or ``replies`` for an inbox."""
    tokens = subject.split(".", 3)
    return _STREAMS_BY_TOKEN.get(tokens[2], REPLIES) if tokens[0] == "tg" and len(tokens) > 3 else REPLIES


class StreamSpec(msgspec.Struct, frozen=True):
    """One stream as it must exist. ``max_bytes`` and ``max_messages`` bound it (I7); with 0 only the other applies."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["work_queue", "limits"]
    discard: Literal["new", "old"]
    max_bytes: int
    max_messages: int = 0
    max_messages_per_subject: int = 0
    max_message_bytes: int = STREAM_MESSAGE_BYTES_MAX
    max_age_s: float = 0.0
    duplicate_window_s: float = 120.0


class DurableName(msgspec.Struct, frozen=True):
    """The name of one durable consumer."""

    stream: str
    name: str


class ConsumerSpec(msgspec.Struct, frozen=True):
    """One durable pull consumer. ``max_ack_pending`` bounds unacknowledged messages; an ack frees a slot.

    ``max_deliver``: -1 is no limit, as for every consumer of a run: at a limit the broker keeps a message, delivers it
    to no one and reports nothing. ``core.deliveries`` decides when work is dropped.
    """

    durable: DurableName
    filter_subject: str
    ack_wait_s: float
    max_ack_pending: int
    max_deliver: int = -1


class Topology(msgspec.Struct, frozen=True):
    """All names of one run."""

    run_id: RunId

    def __post_init__(self) -> None:
        """Refuse a run id that cannot be part of a stream name and a subject."""
        if not RUN_ID_PATTERN.match(self.run_id):
            raise ConfigError(
                f"Run id {self.run_id!r} cannot name streams",
                why="it must be 1-48 lower-case letters, digits and inner dashes",
                fix="choose another `run` in the run file",
            )

    def stream(self, kind: str) -> str:
        """The name of a stream, such as ``TASKS-<run>``."""
        return f"{kind}-{self.run_id}"

    def tasks(self, pool: str) -> str:
        """Subject of the tasks of one actor pool."""
        return f"tg.{self.run_id}.task.{pool}"

    def rollouts(self, environment: str) -> str:
        """Subject of unscored rollouts of one environment."""
        return f"tg.{self.run_id}.roll.{_word(environment)}"

    def trajectories(self, shard: int) -> str:
        """Subject of scored trajectories of one store shard."""
        return f"tg.{self.run_id}.traj.{shard}"

    def progress(self, task_id: TaskId) -> str:
        """Subject of the progress of one running task."""
        return f"tg.{self.run_id}.part.{task_id}"

    def policy(self, model: str) -> str:
        """Subject of one model's versions."""
        return f"tg.{self.run_id}.ver.{model}"

    def control(self, service: str) -> str:
        """Subject of desired state for one service."""
        return f"tg.{self.run_id}.ctl.{service}"

    def event(self, kind: str) -> str:
        """Subject of events of one kind."""
        return f"tg.{self.run_id}.evt.{kind}"

    def quarantine(self, source: str) -> str:
        """Subject of messages that a service refused."""
        return f"tg.{self.run_id}.bad.{source}"

    def stats(self, service: str) -> str:
        """Core subject (no stream) of the statistics of a service's instances; only its user may publish there."""
        return f"tg.{self.run_id}.stats.{service}"

    def streams(self, *, max_tasks: int, environment: str | None = None) -> tuple[StreamSpec, ...]:
        """The table. ``max_tasks`` bounds TASKS: twice the actors' slots.

        A work queue takes only subjects that a consumer reads: what is published to others would fill it for ever.
        ``environment``: whose rollouts are taken; None takes those of all, where nothing but the names matters.
        """
        rollouts = f"tg.{self.run_id}.roll.*" if environment is None else self.rollouts(environment)
        prefix = f"tg.{self.run_id}"
        return (
            StreamSpec(
                name=self.stream("TASKS"),
                subjects=(self.tasks(POOL),),
                retention="work_queue",
                discard="new",
                max_bytes=256 * MIB,
                max_messages=max_tasks,
                max_message_bytes=256 * KIB,
            ),
            StreamSpec(
                name=self.stream("ROLLOUTS"),
                subjects=(rollouts,),
                retention="work_queue",
                discard="new",
                max_bytes=2 * GIB,
            ),
            StreamSpec(
                name=self.stream("TRAJECTORIES"),
                subjects=(self.trajectories(SHARD),),
                retention="work_queue",
                discard="new",
                max_bytes=2 * GIB,
            ),
            # Progress can be generated again: the oldest is dropped first, and no publisher waits.
            StreamSpec(
                name=self.stream("PROGRESS"),
                subjects=(f"{prefix}.part.*",),
                retention="limits",
                discard="old",
                max_bytes=256 * MIB,
                max_messages_per_subject=1,
                max_age_s=3600.0,
                # Each write replaces the one before: ids need to be known for no longer than a publish is repeated.
                duplicate_window_s=5.0,
            ),
            StreamSpec(
                name=self.stream("POLICY"),
                subjects=(f"{prefix}.ver.*",),
                retention="limits",
                discard="old",
                max_bytes=256 * MIB,
                max_messages_per_subject=64,
            ),
            StreamSpec(
                name=self.stream("CONTROL"),
                subjects=(f"{prefix}.ctl.*",),
                retention="limits",
                discard="old",
                max_bytes=16 * MIB,
                max_messages_per_subject=1,
            ),
            StreamSpec(
                name=self.stream("EVENTS"),
                subjects=(f"{prefix}.evt.*",),
                retention="limits",
                discard="old",
                max_bytes=64 * MIB,
                max_age_s=7 * 24 * 3600.0,
            ),
            StreamSpec(
                name=self.stream("QUARANTINE"),
                subjects=(f"{prefix}.bad.*",),
                retention="limits",
                discard="old",
                max_bytes=64 * MIB,
                max_age_s=7 * 24 * 3600.0,
            ),
        )

    def task_durable(self, pool: str) -> DurableName:
        """The consumer of TASKS that the actors of one pool share."""
        return DurableName(self.stream("TASKS"), f"actors-{pool}")

    def rollout_durable(self, environment: str) -> DurableName:
        """The consumer of ROLLOUTS that the workers of one environment share."""
        return DurableName(self.stream("ROLLOUTS"), f"environments-{_word(environment)}")

    def trajectory_durable(self, shard: int) -> DurableName:
        """The consumer of TRAJECTORIES that one store shard reads."""
        return DurableName(self.stream("TRAJECTORIES"), f"store-{shard}")

    def task_consumer(self, pool: str, *, ack_wait_s: float, max_running: int) -> ConsumerSpec:
        """Actors of one pool share it; ``max_ack_pending`` is the bound on rollouts in flight, updated live."""
        return ConsumerSpec(
            durable=self.task_durable(pool),
            filter_subject=self.tasks(pool),
            ack_wait_s=ack_wait_s,
            max_ack_pending=max_running,
        )

    def rollout_consumer(self, environment: str, *, ack_wait_s: float, max_running: int) -> ConsumerSpec:
        """Workers of one environment share it; acked once the scored trajectory's publish was acked."""
        return ConsumerSpec(
            durable=self.rollout_durable(environment),
            filter_subject=self.rollouts(environment),
            ack_wait_s=ack_wait_s,
            max_ack_pending=max_running,
        )

    def trajectory_consumer(self, shard: int, *, ack_wait_s: float = 5.0) -> ConsumerSpec:
        """One store shard reads it; acked only after the ledger's commit, redelivered until then."""
        return ConsumerSpec(
            durable=self.trajectory_durable(shard),
            filter_subject=self.trajectories(shard),
            ack_wait_s=ack_wait_s,
            max_ack_pending=4096,
        )


def _word(environment: str) -> str:
    """An environment's name as one part of a subject and of a consumer's name: ``my_task.py:Reverse`` has a dot."""
    return _NO_WORD.sub("_", environment)
