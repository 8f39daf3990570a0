from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.unit.trajectory_store.building import MAIN, NOW_S, RUN, at, make_trajectory, message_of
from tidegate.core.ids import LineageName, RunId
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.trajectory_store.admission_check import AdmissionCheck
from tidegate.trajectory_store.intake import (
    IDS_PER_MESSAGE_MAX,
    ArrivedMessage,
    Parcel,
    Refusal,
    open_messages,
)
from tidegate.trajectory_store.uploads import UploadArea
from tidegate.v1 import trajectory_pb2
from tidegate.wire.frame import encode_frame, provenance_of
from tidegate.wire.policy_payload import digest_of
from tidegate.wire.reference import PayloadReference
from tidegate.wire.subjects import HEADER_REFERENCE, HEADER_TRAJECTORY_IDS

TREE = LineageTree().add(Lineage(name=MAIN))


@pytest.fixture
def uploads(tmp_path: Path) -> UploadArea:
    return UploadArea(tmp_path, bytes_max=10**6, ttl_s=60.0, durable=False, now_s=0.0)


def opened(message: ArrivedMessage, uploads: UploadArea) -> Parcel | Refusal:
    admission = AdmissionCheck(None, run_id=RUN, newest_step=lambda _lineage: 0)
    (found,) = open_messages([message], run_id=RUN, tree=TREE, uploads=uploads, admission=admission)
    return found


def refusal_of(record: Trajectory, uploads: UploadArea) -> str:
    refusal = opened(message_of(record), uploads)
    assert isinstance(refusal, Refusal)
    return refusal.reason


def reference_message(frame: bytes) -> ArrivedMessage:
    reference = trajectory_pb2.PayloadReference(payload_id="p", size=len(frame), digest=digest_of(frame))
    return ArrivedMessage(reference.SerializeToString(), {HEADER_REFERENCE: "1"}, NOW_S)


def keep(uploads: UploadArea, frame: bytes) -> None:
    upload = uploads.begin(PayloadReference("p", len(frame), digest_of(frame)))
    assert upload is not None
    upload.write(frame)
    upload.finish()


def test_good_message_is_opened_with_its_frame_as_it_came(uploads: UploadArea) -> None:
    message = message_of(make_trajectory("t-1"), make_trajectory("t-2"))
    parcel = opened(message, uploads)
    assert isinstance(parcel, Parcel)
    assert parcel.columns.trajectory_id == ["t-1.0", "t-2.0"]
    assert parcel.head == provenance_of(message.data)
    assert (parcel.frame, parcel.upload) == (message.data, None)


def test_one_bad_record_refuses_its_whole_message(uploads: UploadArea) -> None:
    bad = make_trajectory("t-2")
    bad.tensors["behavior_logprobs"] = np.full(4, np.nan, np.float32)
    refusal = opened(message_of(make_trajectory("t-1"), bad), uploads)
    assert isinstance(refusal, Refusal)
    assert "t-2.0" in refusal.reason


def test_record_of_another_run_is_refused(uploads: UploadArea) -> None:
    stray = msgspec.structs.replace(make_trajectory("t-1"), run_id=RunId("yesterday"))
    assert "belongs to run 'yesterday'" in refusal_of(stray, uploads)


def test_any_span_of_an_unknown_lineage_is_refused(uploads: UploadArea) -> None:
    spans = (VersionSpan(at(0), 0, 2), VersionSpan(at(1, LineageName("9-dead")), 2, 4))
    assert "9-dead@1" in refusal_of(make_trajectory("t-1", spans=spans), uploads)


def test_reference_is_resolved_to_what_was_uploaded(uploads: UploadArea) -> None:
    frame = encode_frame([make_trajectory("t-1")])
    keep(uploads, frame)
    parcel = opened(reference_message(frame), uploads)
    assert isinstance(parcel, Parcel)
    assert (parcel.frame, parcel.upload) == (frame, digest_of(frame))


def test_reference_to_garbage_and_garbage_for_a_reference_are_refused(uploads: UploadArea) -> None:
    keep(uploads, b"no frame")
    assert isinstance(opened(reference_message(b"no frame"), uploads), Refusal)
    assert isinstance(opened(ArrivedMessage(b"\xff\xff", {HEADER_REFERENCE: "1"}, NOW_S), uploads), Refusal)
    missing = opened(reference_message(b"never uploaded"), uploads)
    assert isinstance(missing, Refusal)
    assert "not here" in missing.reason


def test_upload_that_the_disk_lost_is_refused_and_holds_no_other_message_up(
    uploads: UploadArea, tmp_path: Path
) -> None:
    frame = encode_frame([make_trajectory("t-1")])
    keep(uploads, frame)
    path = tmp_path / digest_of(frame).hex()
    path.unlink()
    path.mkdir()
    lost = opened(reference_message(frame), uploads)
    assert isinstance(lost, Refusal)
    assert "cannot be read" in lost.reason


def test_header_names_at_most_as_many_trajectories_as_a_message_may_hold() -> None:
    names = ",".join(f"t-{index}.0" for index in range(IDS_PER_MESSAGE_MAX + 5))
    assert (
        len(ArrivedMessage(b"", {HEADER_TRAJECTORY_IDS: names}, NOW_S).trajectory_ids())
        == IDS_PER_MESSAGE_MAX
    )
    assert ArrivedMessage(b"", {HEADER_TRAJECTORY_IDS: "a,,b,"}, NOW_S).trajectory_ids() == ["a", "b"]
    assert ArrivedMessage(b"", {}, NOW_S).trajectory_ids() == []
