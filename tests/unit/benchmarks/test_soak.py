"""Growth over a long run."""

from pathlib import Path

import pytest

from benchmarks.disk import disk_bytes
from benchmarks.soak import Reading, rows, slope


def test_slope_of_a_line_is_exact() -> None:
    assert slope([(x, 3.0 * x + 2.0) for x in (0.0, 1.0, 2.0, 5.0)]) == pytest.approx(3.0)


def test_noise_around_a_constant_has_no_slope() -> None:
    assert slope([(0.0, 1.0), (1.0, 2.0), (2.0, 2.0), (3.0, 1.0)]) == pytest.approx(0.0)


def test_one_moment_has_no_slope() -> None:
    assert slope([(1.0, 5.0), (1.0, 7.0)]) == 0.0


def test_growth_is_of_the_second_half_and_by_trajectory() -> None:
    readings = [
        Reading(
            at_s=3600.0 * number,
            trajectories=1_000_000 * number,
            memory_mb={"learner": 100.0 if number < 2 else 200.0 + number},
            descriptors={"learner": 20},
            disk_bytes={"ledger": 5_000_000 * number},
        )
        for number in range(5)
    ]
    found = {each.name: each.tidegate.median for each in rows(readings) if each.tidegate is not None}
    assert found["learner: memory, growth"] == pytest.approx(1.0)
    assert found["disk, ledger: growth"] == pytest.approx(5.0)
    assert found["disk, ledger: growth in 30 days at this rate"] == pytest.approx(5.0 * 24 * 30)


def test_disk_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * 10_000)
    assert disk_bytes(tmp_path / "folder") == disk_bytes(tmp_path / "folder" / "file") >= 10_000
