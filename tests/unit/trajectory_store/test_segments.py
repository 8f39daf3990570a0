import errno
import os
from pathlib import Path

import pytest

from tests.unit.trajectory_store.building import make_trajectory
from tidegate.core.errors import CorruptionError
from tidegate.trajectory_store.segments import READERS_MAX, FrameCache, Segments
from tidegate.trajectory_store.state import Location
from tidegate.wire.frame import encode_frame

FRAMES = [encode_frame([make_trajectory(f"t-{index}")]) for index in range(8)]


def open_segments(
    folder: Path, *, segment_bytes: int = 10_000, cache_bytes: int = 0, newest_known: int = 0
) -> Segments:
    return Segments(folder, segment_bytes=segment_bytes, cache_bytes=cache_bytes, newest_known=newest_known)


def num_open(folder: Path) -> int:
    """How many files of a folder this process has open."""
    files = (Path(f"/proc/self/fd/{each}").resolve() for each in os.listdir("/proc/self/fd"))
    return sum(each.parent == folder.resolve() for each in files)


@pytest.mark.parametrize("cache_bytes", [0, 2000, 10**6])
def test_frames_are_read_back_as_they_were_written(tmp_path: Path, cache_bytes: int) -> None:
    segments = open_segments(tmp_path, cache_bytes=cache_bytes)
    locations = segments.append(FRAMES[:3]) + segments.append(FRAMES[3:])
    assert [segments.read(location) for location in locations] == FRAMES
    segments.close()


def test_readers_keep_fewer_files_open_than_there_are_segments(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, segment_bytes=1)
    locations = [segments.append([FRAMES[number % 8]])[0] for number in range(2 * READERS_MAX)]
    for _ in range(2):
        assert [segments.read(location) for location in locations] == FRAMES * (2 * READERS_MAX // 8)
    assert num_open(tmp_path) == READERS_MAX + 1, "and the one that is written"
    segments.delete(locations[-2].segment)
    segments.close()
    assert num_open(tmp_path) == 0


def test_frames_survive_the_process_and_a_new_one_begins_a_new_segment(tmp_path: Path) -> None:
    first = open_segments(tmp_path)
    [location] = first.append(FRAMES[:1])
    first.close()
    second = open_segments(tmp_path)
    assert second.read(location) == FRAMES[0]
    [later] = second.append(FRAMES[1:2])
    assert later.segment > location.segment
    second.close()


def test_bytes_of_an_interrupted_write_are_ignored(tmp_path: Path) -> None:
    first = open_segments(tmp_path)
    [location] = first.append(FRAMES[:1])
    first.close()
    with (tmp_path / "00000001.frames").open("ab") as segment:
        segment.write(FRAMES[1][:37])
    second = open_segments(tmp_path)
    assert second.read(location) == FRAMES[0]
    second.close()


def test_append_after_one_that_failed_half_way_knows_where_it_writes(tmp_path: Path) -> None:
    segments = open_segments(tmp_path)
    segments.append(FRAMES[:1])
    with (tmp_path / "00000001.frames").open("ab") as segment:
        segment.write(b"half a frame")
    [location] = segments.append(FRAMES[1:2])
    assert segments.read(location) == FRAMES[1]
    segments.close()


def test_segment_that_cannot_be_opened_is_tried_again_at_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = open_segments(tmp_path, segment_bytes=1)
    [first] = segments.append(FRAMES[:1])
    open_file = os.open
    with monkeypatch.context() as full:

        def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT:
                raise OSError(errno.ENOSPC, "No space left on device")
            return open_file(path, flags, mode)

        full.setattr(os, "open", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                segments.append(FRAMES[1:2])
    [second] = segments.append(FRAMES[1:2])
    assert second.segment > first.segment
    assert [segments.read(location) for location in (first, second)] == FRAMES[:2]
    segments.close()


def test_more_frames_than_one_system_call_takes_are_all_written(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, segment_bytes=10**9)
    locations = segments.append(FRAMES * 100)
    assert [segments.read(location) for location in locations[-8:]] == FRAMES
    segments.close()


def test_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, segment_bytes=1)
    locations = [segments.append([frame])[0] for frame in FRAMES]
    assert [location.segment for location in locations] == list(range(1, 9))
    assert segments.active == 8
    assert sum(segments.sizes.values()) == sum(len(frame) for frame in FRAMES)
    segments.close()


def test_number_that_the_ledger_knows_is_not_given_to_another_file(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, newest_known=41)
    assert segments.active == 42
    segments.close()


@pytest.mark.parametrize("damage", ["changed", "truncated", "gone"])
def test_lost_payload_is_detected(tmp_path: Path, damage: str) -> None:
    segments = open_segments(tmp_path)
    first, second = segments.append(FRAMES[:2])
    path = tmp_path / "00000001.frames"
    if damage == "changed":
        data = bytearray(path.read_bytes())
        data[second.offset + second.size - 40] ^= 1
        path.write_bytes(data)
    elif damage == "truncated":
        with path.open("r+b") as file:
            file.truncate(second.offset + 10)
    else:
        path.unlink()
    if damage != "gone":
        assert segments.read(first) == FRAMES[0]
    with pytest.raises(CorruptionError, match="not what was written"):
        segments.read(second)
    segments.close()
    assert not open_segments(tmp_path).holds(second) or damage == "changed"


def test_deleted_segment_gives_its_bytes_back(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, segment_bytes=1)
    [old] = segments.append(FRAMES[:1])
    [new] = segments.append(FRAMES[1:2])
    assert segments.read(old) == FRAMES[0]
    segments.delete(old.segment)
    assert not segments.holds(old)
    assert segments.holds(new)
    assert [path.name for path in tmp_path.iterdir()] == ["00000002.frames"]
    with pytest.raises(CorruptionError):
        segments.read(old)
    segments.close()


def test_cache_keeps_the_newest_frames_within_its_bound() -> None:
    cache = FrameCache(max_bytes=25)
    places = [Location(segment=1, offset=10 * index, size=10) for index in range(4)]
    for place in places:
        cache.put(place, b"0123456789")
    assert [cache.get(place) is not None for place in places] == [False, False, True, True]
    cache.discard(places[2])
    cache.put(places[0], b"0123456789")
    assert [cache.get(place) is not None for place in places] == [True, False, False, True]
