"""Versions read from the folder of weight distribution beside the service."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.weight_distribution.offers import offer, random_tensors, take_in, version
from tidegate.core.errors import CorruptionError, UnknownVersionError
from tidegate.weight_distribution.reading import VersionsOnDisk
from tidegate.weight_distribution.versions import VersionStore


def test_kept_versions_are_read_also_where_they_share_tensors(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, keep_versions=4)
    shared = random_tensors(0)
    offers = [offer(version(step), shared | {"layer0": random_tensors(step)["layer0"]}) for step in (1, 2, 3)]
    for each in offers:
        take_in(store, each)
    on_disk = VersionsOnDisk(tmp_path)
    assert on_disk.versions() == [version(1), version(2), version(3)]
    for each in offers:
        snapshot = on_disk.read(each.manifest.version)
        assert snapshot.version == each.manifest.version
        assert snapshot.tensors.keys() == each.snapshot.tensors.keys()
        for name, tensor in each.snapshot.tensors.items():
            np.testing.assert_array_equal(snapshot.tensors[name], tensor)


def test_file_that_outlives_its_version_makes_no_version(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, keep_versions=2)
    shared = random_tensors(0)
    for step in (1, 2, 3, 4):
        take_in(store, offer(version(step), shared | {"layer0": random_tensors(step)["layer0"]}))
        store.prune()
    kept = VersionsOnDisk(tmp_path).versions()
    assert set(store.kept()) <= set(kept)
    for each in kept:
        VersionsOnDisk(tmp_path).read(each)


def test_damaged_files_are_found(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, keep_versions=4)
    for step in (1, 2):
        take_in(store, offer(version(step)))
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(second.read_bytes()[:-1])
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(bytes(data))
    on_disk = VersionsOnDisk(tmp_path)
    assert on_disk.versions() == [version(1)], "a truncated file is no version"
    with pytest.raises(CorruptionError, match="does not match its digest"):
        on_disk.read(version(1))
    with pytest.raises(UnknownVersionError):
        on_disk.read(version(2))


def test_version_pruned_while_it_is_read_is_unknown(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, keep_versions=1)
    take_in(store, offer(version(1)))
    on_disk = VersionsOnDisk(tmp_path)
    take_in(store, offer(version(2)))
    store.prune()
    with pytest.raises(UnknownVersionError, match="pruned while it was read"):
        on_disk.read(version(1))
