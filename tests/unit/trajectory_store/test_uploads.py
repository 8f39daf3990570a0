import os
from pathlib import Path

import pytest

from tests.support.disks import FULL
from tidegate.core.errors import (
    BackpressureError,
    CorruptionError,
    NotFoundError,
    RecordError,
    UnavailableError,
)
from tidegate.trajectory_store.uploads import UPLOAD_BYTES_MAX, UploadArea
from tidegate.wire.digest import digest_of
from tidegate.wire.reference import PayloadReference


def area(folder: Path, *, bytes_max: int = 1000, ttl_s: float = 60.0, now_s: float = 0.0) -> UploadArea:
    return UploadArea(folder, bytes_max=bytes_max, ttl_s=ttl_s, durable=True, now_s=now_s)


def reference_to(data: bytes, *, name: str = "t-1:scored") -> PayloadReference:
    return PayloadReference(payload_id=name, size=len(data), digest=digest_of(data))


def keep(uploads: UploadArea, data: bytes) -> PayloadReference:
    reference = reference_to(data)
    upload = uploads.begin(reference)
    assert upload is not None
    upload.write(data[:3])
    upload.write(memoryview(data)[3:])
    upload.finish()
    upload.abandon()
    return reference


def test_upload_is_kept_until_its_message_was_accepted(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    reference = keep(uploads, b"a large frame")
    assert uploads.read(reference) == b"a large frame"
    assert uploads.num_bytes == 13
    uploads.remove(reference.digest)
    assert uploads.num_bytes == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFoundError):
        uploads.read(reference)


def test_same_bytes_again_need_no_second_upload(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    reference = keep(uploads, b"a large frame")
    assert uploads.begin(reference) is None


def test_upload_that_is_repeated_is_kept_for_a_whole_lifetime_more(tmp_path: Path) -> None:
    uploads = area(tmp_path, ttl_s=60.0)
    reference = keep(uploads, b"a large frame")
    assert uploads.expire(now_s=50.0, is_reading=True) == 0
    assert uploads.begin(reference) is None
    assert uploads.expire(now_s=100.0, is_reading=True) == 0
    assert uploads.expire(now_s=111.0, is_reading=True) == 1


def test_two_concurrent_uploads_of_the_same_bytes_both_succeed(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    reference = reference_to(b"a large frame")
    both = [uploads.begin(reference), uploads.begin(reference)]
    for upload in both:
        assert upload is not None
        upload.write(b"a large frame")
    for upload in both:
        assert upload is not None
        upload.finish()
        upload.abandon()
    assert uploads.num_bytes == 13
    assert uploads.read(reference) == b"a large frame"


@pytest.mark.parametrize("sent", [b"a large", b"a LARGE frame"])
def test_upload_that_does_not_match_its_reference_is_refused_and_frees_its_space(
    tmp_path: Path, sent: bytes
) -> None:
    uploads = area(tmp_path)
    upload = uploads.begin(reference_to(b"a large frame"))
    assert upload is not None
    upload.write(sent)
    with pytest.raises(CorruptionError):
        upload.finish()
    upload.abandon()
    assert uploads.num_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_upload_longer_than_it_promised_is_cut_off(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    upload = uploads.begin(reference_to(b"short"))
    assert upload is not None
    with pytest.raises(RecordError, match="longer"):
        upload.write(b"much longer")
    upload.abandon()


@pytest.mark.parametrize(
    "reference",
    [
        PayloadReference("p", 0, b"d" * 16),
        PayloadReference("p", UPLOAD_BYTES_MAX + 1, b"d" * 16),
        PayloadReference("p", 5, b"../../etc"),
        PayloadReference("p", 5, b""),
    ],
)
def test_reference_that_promises_the_impossible_is_refused(
    tmp_path: Path, reference: PayloadReference
) -> None:
    with pytest.raises(RecordError, match="promises"):
        area(tmp_path).begin(reference)


def test_full_area_applies_backpressure_until_space_is_freed(tmp_path: Path) -> None:
    uploads = area(tmp_path, bytes_max=20)
    first = keep(uploads, b"0123456789")
    pending = uploads.begin(reference_to(b"abcdefghij"))
    assert pending is not None
    with pytest.raises(BackpressureError):
        uploads.begin(reference_to(b"x"))
    uploads.remove(first.digest)
    assert uploads.begin(reference_to(b"x")) is not None


def test_unreferenced_upload_expires(tmp_path: Path) -> None:
    uploads = area(tmp_path, ttl_s=60.0)
    old = keep(uploads, b"old")
    assert uploads.expire(now_s=50.0, is_reading=True) == 0
    new = keep(uploads, b"new")
    assert uploads.expire(now_s=61.0, is_reading=True) == 1
    with pytest.raises(NotFoundError):
        uploads.read(old)
    assert uploads.read(new) == b"new"


def test_time_in_which_no_message_is_read_takes_nothing_of_a_lifetime(tmp_path: Path) -> None:
    """The learner is away, the store is full, and the upload's message waits in the stream."""
    uploads = area(tmp_path, ttl_s=60.0)
    keep(uploads, b"a large frame")
    assert uploads.expire(now_s=1e6, is_reading=False) == 0
    assert uploads.expire(now_s=1e6 + 59.0, is_reading=True) == 0
    assert uploads.expire(now_s=1e6 + 61.0, is_reading=True) == 1


def test_clock_that_jumps_or_a_machine_that_was_suspended_expires_no_upload(tmp_path: Path) -> None:
    uploads = area(tmp_path, ttl_s=3600.0)
    keep(uploads, b"a large frame")
    for now_s in (1e6, 2e6, 1e3, 3e6):
        assert uploads.expire(now_s=now_s, is_reading=True) == 0


def test_new_process_keeps_complete_uploads_and_clears_unfinished_ones(tmp_path: Path) -> None:
    first = area(tmp_path)
    reference = keep(first, b"a large frame")
    unfinished = first.begin(reference_to(b"never finished"))
    assert unfinished is not None
    unfinished.write(b"never")
    second = area(tmp_path, now_s=5.0)
    assert second.read(reference) == b"a large frame"
    assert second.num_bytes == 13
    assert len(list(tmp_path.iterdir())) == 1


def test_upload_that_changed_on_disk_is_detected(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    reference = keep(uploads, b"a large frame")
    (tmp_path / reference.digest.hex()).write_bytes(b"a large fraud")
    with pytest.raises(CorruptionError, match="changed"):
        uploads.read(reference)


def test_upload_that_a_full_disk_cuts_frees_its_space(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    (tmp_path / "1.part").symlink_to(FULL)
    upload = uploads.begin(reference_to(b"a large frame"))
    assert upload is not None
    upload.write(b"a large frame")
    with pytest.raises(UnavailableError, match="No space"):  # its sender repeats it
        upload.finish()
    upload.abandon()
    assert uploads.num_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_upload_whose_file_cannot_be_opened_reserves_nothing(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    (tmp_path / "1.part").mkdir()
    with pytest.raises(UnavailableError, match="directory"):
        uploads.begin(reference_to(b"a large frame"))
    assert uploads.num_bytes == 0


def test_upload_whose_file_was_deleted_is_not_here_any_more(tmp_path: Path) -> None:
    uploads = area(tmp_path)
    reference = keep(uploads, b"a large frame")
    (tmp_path / reference.digest.hex()).unlink()
    with pytest.raises(NotFoundError, match="deleted"):
        uploads.read(reference)
    assert uploads.num_bytes == 0
    keep(uploads, b"a large frame")
    assert uploads.read(reference) == b"a large frame"


def test_durable_upload_survives_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    keep(area(tmp_path), b"a large frame")
    assert synced[-1] == tmp_path
