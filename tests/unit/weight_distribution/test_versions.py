import errno
from pathlib import Path
from typing import Any, cast

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from safetensors import safe_open

from tests.unit.weight_distribution.offers import Offer, offer, random_tensors, take_in, version
from tidegate.core.errors import CorruptionError, RecordError, UnknownVersionError
from tidegate.core.records import Array
from tidegate.weight_distribution import versions
from tidegate.weight_distribution.versions import VersionStore


def open_store(directory: Path, *, keep_versions: int = 4) -> VersionStore:
    return VersionStore(directory, keep_versions=keep_versions)


def read_all(store: VersionStore, given: Offer, *, chunk_bytes: int = 16) -> bytes:
    views = store.read(given.manifest.version, names=(), offset=0, chunk_bytes=chunk_bytes)
    return b"".join(bytes(view) for view in views)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_version_comes_back_as_it_was_given(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    given = offer(version(1))
    take_in(store, given)
    assert read_all(store, given) == given.payload
    assert store.payload(version(1)) == given.payload
    assert store.head is not None
    assert store.head.announcement == given.announcement


def test_any_cut_of_the_payload_into_chunks_gives_the_same_file(tmp_path: Path) -> None:
    given = offer(version(1))
    for size in (1, 7, 48, 1000):
        store = open_store(tmp_path / str(size))
        intake = store.begin(given.manifest, given.announcement)
        for start in range(0, len(given.payload), size):
            intake.feed(memoryview(given.payload)[start : start + size])
        store.commit(intake)
        assert read_all(store, given) == given.payload
    contents = {(path / "000000000001.safetensors").read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == 1


def test_file_is_read_by_any_safetensors_reader(tmp_path: Path) -> None:
    tensors: dict[str, Array] = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ids": np.array([1, 2], dtype=np.int64),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 3), dtype=np.float16),
    }
    take_in(open_store(tmp_path), offer(version(1), tensors))
    reader = cast("Any", safe_open)  # ships without types
    with reader(tmp_path / "000000000001.safetensors", framework="numpy") as file:
        loaded: dict[str, Array] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded[name], tensor)


def test_recovery_finds_every_kept_version(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    given = [offer(version(step)) for step in range(3)]
    for each in given:
        take_in(store, each)
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(0), version(1), version(2)]
    assert again.problems == []
    assert [read_all(again, each) for each in given] == [each.payload for each in given]
    take_in(again, offer(version(3)))
    assert again.head is not None
    assert again.head.manifest.version == version(3)


def test_prune_keeps_the_newest_and_frees_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep_versions=2)
    for step in range(5):
        take_in(store, offer(version(step)))
        store.prune()
    assert list(store.kept()) == [version(3), version(4)]
    assert len(files(tmp_path)) == 2
    with pytest.raises(UnknownVersionError, match="not kept"):
        store.get(version(0))


def test_frozen_base_is_stored_once_and_outlives_the_version_that_brought_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep_versions=2)
    base = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    given = [offer(version(step), {"base": base, **random_tensors(step)}) for step in range(6)]
    for each in given:
        take_in(store, each)
        store.prune()
    assert store.disk_bytes() < 2 * base.nbytes
    assert [read_all(store, each) for each in given[-2:]] == [each.payload for each in given[-2:]]
    again = open_store(tmp_path, keep_versions=2)
    assert [read_all(again, each) for each in given[-2:]] == [each.payload for each in given[-2:]]
    take_in(again, offer(version(6), {"base": base}))
    take_in(again, offer(version(7), random_tensors(7)))
    take_in(again, offer(version(8), random_tensors(8)))
    again.prune()
    assert again.disk_bytes() < base.nbytes


@hypothesis.given(
    changes=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=25), keep_versions=st.integers(2, 4)
)
def test_disk_stays_below_three_times_the_kept_versions_whatever_changes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[set[int]], keep_versions: int
) -> None:
    directory = tmp_path_factory.mktemp("versions")
    store = open_store(directory, keep_versions=keep_versions)
    layers: dict[str, Array] = {
        f"layer{index}": np.zeros(2**index, dtype=np.float32) + index for index in range(6)
    }
    given: list[Offer] = []
    for step, changed in enumerate(changes):
        layers = {
            name: (np.full_like(tensor, 10 * step + index + 0.5) if index in changed else tensor)
            for index, (name, tensor) in enumerate(layers.items())
        }
        given.append(offer(version(step), layers))
        take_in(store, given[-1])
        store.prune()
    kept = given[-keep_versions:]
    assert store.disk_bytes() <= 3 * sum(each.manifest.payload_size for each in kept)
    assert [read_all(store, each) for each in kept] == [each.payload for each in kept]
    again = open_store(directory, keep_versions=keep_versions)
    assert again.kept() == store.kept()
    assert [read_all(again, each) for each in kept] == [each.payload for each in kept]


@pytest.mark.parametrize("spoil", [slice(0, 1), slice(60, 61), slice(-1, None)])
def test_payload_that_differs_from_its_digests_is_refused_and_leaves_nothing(
    tmp_path: Path, spoil: slice
) -> None:
    store = open_store(tmp_path)
    given = offer(version(1))
    payload = bytearray(given.payload)
    payload[spoil] = bytes(byte ^ 1 for byte in payload[spoil])
    intake = store.begin(given.manifest, given.announcement)
    with pytest.raises(CorruptionError, match="digest"):
        intake.feed(bytes(payload))
    intake.abort()
    assert files(tmp_path) == []
    take_in(store, given)
    assert read_all(store, given) == given.payload


@pytest.mark.parametrize("extra", [-1, 1])
def test_payload_of_another_length_is_refused(tmp_path: Path, extra: int) -> None:
    store = open_store(tmp_path)
    given = offer(version(1))
    payload = given.payload[:extra] if extra < 0 else given.payload + b"x"
    intake = store.begin(given.manifest, given.announcement)

    def take_all() -> None:
        intake.feed(payload)
        store.commit(intake)

    with pytest.raises(RecordError, match=r"ended inside|more bytes"):
        take_all()
    intake.abort()
    assert list(store.kept()) == []


def test_crash_while_a_version_arrives_leaves_the_versions_before_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take_in(store, offer(version(1)))
    coming = offer(version(2))
    store.begin(coming.manifest, coming.announcement).feed(coming.payload[:50])
    assert any(name.endswith(".partial") for name in files(tmp_path))
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(1)]
    assert not any(name.endswith(".partial") for name in files(tmp_path))
    take_in(again, coming)
    assert list(again.kept()) == [version(1), version(2)]


def test_crash_between_writing_and_pruning_is_made_up_for(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep_versions=2)
    for step in range(4):
        take_in(store, offer(version(step)))
    again = open_store(tmp_path, keep_versions=2)
    assert list(again.kept()) == [version(2), version(3)]
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_file_cut_short_by_a_power_loss_is_dropped_and_said(tmp_path: Path, left: int) -> None:
    store = open_store(tmp_path)
    take_in(store, offer(version(1)))
    take_in(store, offer(version(2)))
    torn = tmp_path / "000000000002.safetensors"
    torn.write_bytes(torn.read_bytes()[:left])
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(1)]
    assert [problem.split(":")[0] for problem in again.problems] == ["000000000002.safetensors"]
    assert files(tmp_path) == ["000000000001.safetensors"]


def test_tensor_that_changed_on_disk_takes_no_older_version_with_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    shared = np.arange(3, dtype=np.float32)
    older = offer(version(1), {"shared": shared, "own": np.zeros(9, dtype=np.float32)})
    take_in(store, older)
    # Too small a part of the older file to be read from there, so the newer file has it again.
    take_in(store, offer(version(2), {"shared": shared, "own": np.ones(9, dtype=np.float32)}))
    spoiled = tmp_path / "000000000002.safetensors"
    data = spoiled.read_bytes()
    assert data.count(shared.tobytes()) == 1
    spoiled.write_bytes(data.replace(shared.tobytes(), b"\x55" * shared.nbytes))
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(1)]
    assert read_all(again, older) == older.payload
    assert len(again.problems) == 1


def test_newest_version_whose_bytes_changed_on_disk_is_dropped_and_said(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take_in(store, offer(version(1)))
    take_in(store, offer(version(2)))
    spoiled = tmp_path / "000000000002.safetensors"
    data = bytearray(spoiled.read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(bytes(data))
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(1)]
    assert "digest" in again.problems[0]


@pytest.mark.parametrize("reader", ["read_file", "digest_in"])
def test_version_that_the_disk_cannot_read_any_more_is_dropped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """Of its header, or of a tensor: a bad block."""
    store = open_store(tmp_path)
    take_in(store, offer(version(1)))
    take_in(store, offer(version(2)))
    read: Any = getattr(versions, reader)

    def failing(path: Path, *arguments: Any) -> Any:
        if path.stem.endswith("2"):
            raise OSError(code, "of a disk")
        return read(path, *arguments)

    monkeypatch.setattr(versions, reader, failing)
    code = errno.EMFILE
    with pytest.raises(OSError, match="of a disk"):
        open_store(tmp_path)
    code = errno.EIO
    again = open_store(tmp_path)
    assert list(again.kept()) == [version(1)]
    assert [problem.split(":")[0] for problem in again.problems] == ["000000000002.safetensors"]
    assert files(tmp_path) == ["000000000001.safetensors"]


def test_loss_of_a_shared_base_drops_all_that_needed_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    base = np.ones(1000, dtype=np.float32)
    for step in range(3):
        take_in(store, offer(version(step), {"base": base, **random_tensors(step)}))
    (tmp_path / "000000000001.safetensors").write_bytes(b"")
    again = open_store(tmp_path)
    assert list(again.kept()) == []
    assert len(again.problems) == 3


def test_foreign_file_is_reported_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.safetensors").write_bytes(b"mine")
    store = open_store(tmp_path)
    take_in(store, offer(version(1)))
    assert "notes.safetensors" in files(tmp_path)
    assert store.problems[0].startswith("notes.safetensors")


def test_pull_goes_on_while_its_version_is_pruned(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep_versions=2)
    given = offer(version(1))
    take_in(store, given)
    views = store.read(version(1), names=(), offset=0, chunk_bytes=50)
    first = bytes(next(views))
    for step in (2, 3, 4):
        take_in(store, offer(version(step)))
    store.prune()
    assert list(store.kept()) == [version(3), version(4)]
    assert first + b"".join(bytes(view) for view in views) == given.payload
