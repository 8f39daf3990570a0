import pytest

from tidegate.core.errors import ConfigError
from tidegate.core.ids import RunId, TaskId
from tidegate.wire.progress import PROGRESS_BYTES_MAX
from tidegate.wire.subjects import (
    BROKER_PAYLOAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    STREAM_MESSAGE_BYTES_MAX,
    StreamSpec,
    Topology,
)

TOPOLOGY = Topology(RunId("cartpole-3fa2"))
SPECS = {spec.name: spec for spec in TOPOLOGY.streams(max_tasks=64)}


def spec_of(kind: str) -> StreamSpec:
    return SPECS[TOPOLOGY.stream(kind)]


@pytest.mark.parametrize("run", ["", "A", "a.b", "a*", "-a", "a-", "a" * 49, "a b", "a>"])
def test_run_id_that_cannot_be_part_of_a_subject_is_refused(run: str) -> None:
    with pytest.raises(ConfigError, match="run"):
        Topology(RunId(run))


def test_every_stream_and_subject_names_its_run() -> None:
    for spec in SPECS.values():
        assert spec.name.endswith("-cartpole-3fa2")
        assert all(subject.startswith("tg.cartpole-3fa2.") for subject in spec.subjects)


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        ("TASKS", TOPOLOGY.tasks("default")),
        ("ROLLOUTS", TOPOLOGY.rollouts("arithmetic")),
        ("TRAJECTORIES", TOPOLOGY.trajectories(0)),
        ("PROGRESS", TOPOLOGY.progress(TaskId("t0000000001"))),
        ("POLICY", TOPOLOGY.policy("default")),
        ("CONTROL", TOPOLOGY.control("task_queue")),
        ("EVENTS", TOPOLOGY.event("evaluation")),
        ("QUARANTINE", TOPOLOGY.quarantine("actor")),
    ],
)
def test_subject_belongs_to_exactly_its_stream(kind: str, subject: str) -> None:
    owners = [
        spec.name
        for spec in SPECS.values()
        if any(subject.rpartition(".")[0] == pattern.rpartition(".")[0] for pattern in spec.subjects)
    ]
    assert owners == [TOPOLOGY.stream(kind)]


def test_work_queue_takes_only_what_its_consumer_reads() -> None:
    specs = {spec.name: spec for spec in TOPOLOGY.streams(max_tasks=64, environment="my_task.py:Reverse")}
    for consumer in (
        TOPOLOGY.task_consumer("default", ack_wait_s=5, max_running=8),
        TOPOLOGY.rollout_consumer("my_task.py:Reverse", ack_wait_s=5, max_running=8),
        TOPOLOGY.trajectory_consumer(0),
    ):
        assert specs[consumer.durable.stream].subjects == (consumer.filter_subject,)


def test_statistics_are_kept_by_no_stream() -> None:
    prefix = TOPOLOGY.stats("actor").rpartition(".")[0]
    assert all(pattern.rpartition(".")[0] != prefix for spec in SPECS.values() for pattern in spec.subjects)


def test_every_stream_is_bounded_and_work_is_never_pushed_out_by_newer_work() -> None:
    for spec in SPECS.values():
        assert spec.max_bytes > 0
        assert spec.max_message_bytes <= STREAM_MESSAGE_BYTES_MAX < BROKER_PAYLOAD_BYTES_MAX
    for kind in ("TASKS", "ROLLOUTS", "TRAJECTORIES"):
        assert (spec_of(kind).retention, spec_of(kind).discard) == ("work_queue", "new")
    assert spec_of("TASKS").max_messages == 64


def test_progress_keeps_the_last_of_each_task_and_never_blocks_its_writer() -> None:
    spec = spec_of("PROGRESS")
    assert (spec.retention, spec.discard, spec.max_messages_per_subject) == ("limits", "old", 1)
    assert 0 < spec.duplicate_window_s <= spec.max_age_s
    assert spec.max_message_bytes >= MESSAGE_BYTES_MAX > PROGRESS_BYTES_MAX


def test_inline_message_fits_the_streams_that_carry_payloads() -> None:
    for kind in ("ROLLOUTS", "TRAJECTORIES", "POLICY"):
        assert spec_of(kind).max_message_bytes >= MESSAGE_BYTES_MAX


def test_broker_never_stops_delivering_because_its_limit_is_silent() -> None:
    assert TOPOLOGY.trajectory_consumer(0).max_deliver == -1
    assert TOPOLOGY.task_consumer("default", ack_wait_s=5, max_running=8).max_deliver == -1
    assert TOPOLOGY.rollout_consumer("arithmetic", ack_wait_s=5, max_running=8).max_deliver == -1
