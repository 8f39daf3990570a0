"""Only what the task queue admitted is stored: forged, relabelled and stolen trajectories at the store's edge."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.settings import make_settings
from tests.unit.trajectory_store.building import (
    MAIN,
    NOW_S,
    RUN,
    at,
    leased,
    make_group,
    make_trajectory,
    state_of,
)
from tidegate.core.errors import NotFoundError, RecordError
from tidegate.core.ids import LineageName, TaskId, TrajectoryId
from tidegate.core.records import Task, Trajectory
from tidegate.core.staleness import Lineage
from tidegate.runtime import changing_file
from tidegate.runtime.files import replace_file
from tidegate.runtime.task_secret import OVERLAP_S, TaskSecrets, read_task_secrets
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage, Refusal
from tidegate.trajectory_store.store import Store
from tidegate.wire.frame import decode_frame, encode_frame, open_frame
from tidegate.wire.subjects import HEADER_TASK_PROOF, HEADER_TRAJECTORY_IDS
from tidegate.wire.task_proof import proof_of, proof_of_queue, task_key

SECRET = b"a secret of the task queue and the store"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store at version 2 of its first lineage."""
    made = Store(
        tmp_path, run_id=RUN, config=TrajectoryStoreConfig(), now_s=NOW_S, task_secrets=lambda: (SECRET,)
    )
    made.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=(), now_s=NOW_S)
    made.ledger.note_head(at(2))
    yield made
    made.close()


def admitted(name: str, *, num_samples: int = 1, required: int = 0, secret: bytes = SECRET) -> Task:
    """A task as an actor gets it."""
    task = Task(
        task_id=TaskId(name),
        run_id=RUN,
        kind="segment",
        required_version=at(required),
        num_samples=num_samples,
    )
    return msgspec.structs.replace(task, key=task_key(task, secret))


def message(task: Task, *records: Trajectory) -> ArrivedMessage:
    """What an actor that holds ``task`` publishes."""
    frame = encode_frame(records)
    ids = [record.trajectory_id for record in records]
    return ArrivedMessage(
        data=frame,
        headers={
            HEADER_TRAJECTORY_IDS: ",".join(ids),
            HEADER_TASK_PROOF: proof_of(task, ids, open_frame(frame).content_digest()),
        },
        received_at_s=NOW_S,
    )


def refusal_of(store: Store, *messages: ArrivedMessage) -> Refusal:
    """The refusal of the only message that is refused, which is kept as the loop does."""
    (refused,) = store.ingest(messages, now_s=NOW_S).refused
    store.refuse(refused, now_s=NOW_S)
    return refused


def test_trajectory_of_an_admitted_task_is_stored(store: Store) -> None:
    intake = store.ingest(
        [
            message(admitted("t-1"), make_trajectory("t-1", version=at(1))),
            message(admitted("t-2", num_samples=3), *make_group("t-2", 3)),
        ],
        now_s=NOW_S,
    )
    assert not intake.refused
    assert store.totals().available == 4


def test_proof_survives_the_rewards_that_an_environment_worker_adds(store: Store) -> None:
    sent = message(admitted("t-1", num_samples=3), *make_group("t-1", 3))
    scored = [
        msgspec.structs.replace(record, reward=1.0, verifier_log="fine") for record in decode_frame(sent.data)
    ]
    relayed = msgspec.structs.replace(sent, data=encode_frame(scored))
    assert not store.ingest([relayed], now_s=NOW_S).refused


def test_id_that_the_queue_did_not_admit_is_refused_and_gets_no_row(store: Store) -> None:
    forged = admitted("t-9", secret=b"a wrongly guessed secret")
    refused = refusal_of(store, message(forged, make_trajectory("t-9")))
    assert "without a valid proof" in refused.reason
    with pytest.raises(NotFoundError):
        store.trajectory("t-9.0")


def test_task_signed_before_a_rotation_is_stored_during_the_overlap_and_refused_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing_file, "LOOK_PERIOD_S", 0.0)
    before = TaskSecrets("a" * 64, following="b" * 64)
    after = before.rotated(now_s=NOW_S)
    path = tmp_path / "tasks.secret"
    replace_file(path, before.to_text().encode())
    settings = msgspec.structs.replace(make_settings(tmp_path, broker_url=""), task_secret_path=str(path))
    secrets = read_task_secrets(settings)
    assert secrets is not None
    now_s = [NOW_S]
    store = Store(
        tmp_path / "store",
        run_id=RUN,
        config=TrajectoryStoreConfig(),
        now_s=NOW_S,
        task_secrets=lambda: secrets().accepted(now_s=now_s[0]),
    )
    with contextlib.closing(store):
        store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=(), now_s=NOW_S)
        # The queue's pod may see the rotation first: the store has the next secret already.
        for name, secret in (("t-1", before.current), ("t-2", after.current)):
            task = admitted(name, secret=secret.encode())
            assert not store.ingest([message(task, make_trajectory(name))], now_s=NOW_S).refused
        replace_file(path, after.to_text().encode())
        old = admitted("t-3", secret=before.current.encode())
        assert not store.ingest([message(old, make_trajectory("t-3"))], now_s=NOW_S).refused
        now_s[0] += OVERLAP_S
        late = admitted("t-4", secret=before.current.encode())
        assert "valid proof" in refusal_of(store, message(late, make_trajectory("t-4"))).reason
        store.admission.check_held(
            [TrajectoryId("t-5.0")], proof_of_queue([TrajectoryId("t-5.0")], after.current.encode())
        )


def test_message_without_a_proof_is_refused(store: Store) -> None:
    honest = message(admitted("t-1"), make_trajectory("t-1"))
    bare = msgspec.structs.replace(
        honest, headers={HEADER_TRAJECTORY_IDS: honest.headers[HEADER_TRAJECTORY_IDS]}
    )
    assert "does not prove" in refusal_of(store, bare).reason


@pytest.mark.parametrize(
    "proof", ["", "1 0-aaaa@0 00 00", "x", "9 0-aaaa@0 zz zz", "1 nothing 00 00", "1  2  3  4"]
)
def test_garbage_that_names_the_trajectories_of_others_drops_none_of_them(store: Store, proof: str) -> None:
    garbage = ArrivedMessage(
        data=b"garbage",
        headers={HEADER_TRAJECTORY_IDS: "t-1.0,t-2.0", HEADER_TASK_PROOF: proof},
        received_at_s=NOW_S,
    )
    refusal_of(store, garbage)
    assert store.totals().quarantined == 1
    assert not store.totals().dropped
    assert not store.ingest([message(admitted("t-1"), make_trajectory("t-1"))], now_s=NOW_S).refused
    assert leased(store, 2).trajectory_ids == ["t-1.0"]


def test_damaged_message_of_its_own_task_drops_its_trajectories(store: Store) -> None:
    honest = message(admitted("t-1"), make_trajectory("t-1"))
    refusal_of(store, msgspec.structs.replace(honest, data=honest.data[:-5]))
    assert state_of(store, "t-1.0") == ("dropped", "invalid")


def test_old_frame_relabelled_as_fresh_is_refused(store: Store) -> None:
    honest = message(admitted("t-1"), make_trajectory("t-1", version=at(0)))
    (record,) = decode_frame(honest.data)
    (span,) = record.spans
    fresh = msgspec.structs.replace(record, spans=(msgspec.structs.replace(span, version=at(2)),))
    relabelled = msgspec.structs.replace(honest, data=encode_frame([fresh]))
    assert "is not what its proof is of" in refusal_of(store, relabelled).reason


def test_payload_under_the_name_of_a_running_task_is_refused(store: Store) -> None:
    running = message(admitted("t-2"), make_trajectory("t-2"))
    old = make_trajectory("t-2")
    other = msgspec.structs.replace(
        old, tensors={**old.tensors, "tokens": np.arange(4, dtype=np.int64)[::-1].copy()}
    )
    forged = msgspec.structs.replace(running, data=encode_frame([other]))
    assert "is not what its proof is of" in refusal_of(store, forged).reason


def test_versions_beyond_the_newest_are_refused_as_early(store: Store) -> None:
    refused = refusal_of(store, message(admitted("t-1"), make_trajectory("t-1", version=at(4))))
    assert refused.is_early
    assert "newest version is 0-aaaa@2" in refused.reason


def test_trajectory_that_began_before_its_task_allows_is_refused(store: Store) -> None:
    late = admitted("t-1", required=2)
    assert "its task allows" in refusal_of(store, message(late, make_trajectory("t-1", version=at(1)))).reason


@pytest.mark.parametrize(("num_samples", "index"), [(2, 2), (1, 1)])
def test_sample_that_the_task_does_not_have_is_refused(store: Store, num_samples: int, index: int) -> None:
    record = make_trajectory("t-1", index=index, group_size=num_samples)
    assert (
        "does not have" in refusal_of(store, message(admitted("t-1", num_samples=num_samples), record)).reason
    )


def test_group_of_another_size_than_its_task_is_refused(store: Store) -> None:
    # Three samples in a batch of two could never be trained, and ended the learner.
    record = make_trajectory("t-1", group_size=3)
    assert "another size" in refusal_of(store, message(admitted("t-1"), record)).reason


def test_claim_cannot_be_widened(store: Store) -> None:
    task = admitted("t-1")
    wide = msgspec.structs.replace(task, num_samples=64)
    refused = refusal_of(store, message(wide, make_trajectory("t-1", index=7, group_size=64)))
    assert "without a valid proof" in refused.reason


def test_key_of_one_task_opens_no_other(store: Store) -> None:
    mine, other = admitted("t-1"), admitted("t-2")
    stolen = msgspec.structs.replace(other, key=mine.key)
    assert "without a valid proof" in refusal_of(store, message(stolen, make_trajectory("t-2"))).reason


def test_version_of_a_closed_lineage_is_known_by_its_batches(store: Store) -> None:
    store.ingest([message(admitted("t-1"), make_trajectory("t-1"))], now_s=NOW_S)
    leased(store, 2)
    store.open_lineage(
        Lineage(name=LineageName("1-bbbb"), parent=MAIN, fork_step=1),
        learner_id="learner-1",
        consumed=(),
        now_s=NOW_S,
    )
    made = message(admitted("t-2"), make_trajectory("t-2", version=at(3)))
    never = message(admitted("t-3"), make_trajectory("t-3", version=at(4)))
    assert not store.ingest([made], now_s=NOW_S).refused
    assert refusal_of(store, never).is_early


def test_version_that_another_lineage_forked_from_is_known_to_a_ledger_that_lost_its_batches(
    store: Store,
) -> None:
    store.open_lineage(
        Lineage(name=LineageName("1-bbbb"), parent=MAIN, fork_step=500),
        learner_id="learner-1",
        consumed=(),
        now_s=NOW_S,
    )
    assert store.ledger.newest_step(MAIN) == 500
    assert store.ledger.newest_step(LineageName("1-bbbb")) == 500


@pytest.mark.parametrize(
    ("name", "proof", "is_held"),
    [
        ("t-1.0", proof_of(admitted("t-1"), [TrajectoryId("t-1.0")], b""), True),
        ("t-1.0", proof_of_queue([TrajectoryId("t-1.0")], SECRET), True),
        ("t-2.0", proof_of(admitted("t-1"), [TrajectoryId("t-1.0")], b""), False),
        ("t-2.0", proof_of_queue([TrajectoryId("t-1.0")], SECRET), False),
        ("t-1.0", proof_of_queue([TrajectoryId("t-1.0")], b"another secret of thirty-two bytes.."), False),
        ("t-1.0", "queue \udc80", False),
        ("t-1.0", "", False),
    ],
)
def test_only_its_holder_and_the_queue_may_drop_a_task(
    store: Store, name: str, proof: str, is_held: bool
) -> None:
    ids = [TrajectoryId(name)]
    if is_held:
        store.admission.check_held(ids, proof)
        return
    with pytest.raises(RecordError):
        store.admission.check_held(ids, proof)
