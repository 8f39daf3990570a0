from pathlib import Path

import msgspec
import pytest

from tidegate.cli.ui import curves as module
from tidegate.cli.ui.curves import POINTS_MAX, Curves


def line(step: int, **values: object) -> bytes:
    return msgspec.json.encode({"step": step, "at_s": 100.0 + step, "env_steps": 10 * step, **values}) + b"\n"


@pytest.fixture
def steps_file(tmp_path: Path) -> Path:
    path = tmp_path / "learner" / "steps.jsonl"
    path.parent.mkdir()
    return path


def test_run_without_an_update_has_no_curves(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    assert curves.follow() == 0
    assert curves.answer() == {}


def test_every_number_is_a_curve_and_nothing_else_is(tmp_path: Path, steps_file: Path) -> None:
    steps_file.write_bytes(
        line(1, loss=0.5, mean_reward=None, by_lag={"1": 3}, lineage="0-a", metrics={"entropy": 0.75})
        + line(2, loss=0.25, sure=True)
    )
    curves = Curves(tmp_path)
    assert curves.follow() == 2
    loss = {"step": [1, 2], "at_s": [0.0, 1.0], "env_steps": [10, 20], "value": [0.5, 0.25]}
    entropy = {"step": [1], "at_s": [0.0], "env_steps": [10], "value": [0.75]}
    assert curves.answer() == {"loss": loss, "entropy": entropy}


def test_appended_updates_are_read_once_they_are_whole(tmp_path: Path, steps_file: Path) -> None:
    steps_file.write_bytes(line(1, loss=1.0) + line(2, loss=2.0)[:-5])
    curves = Curves(tmp_path)
    assert curves.follow() == 1
    with steps_file.open("ab") as file:
        file.write(line(2, loss=2.0)[-5:] + b"{damaged\n" + line(3, loss=3.0))
    assert curves.follow() == 3
    assert curves.follow() == 3
    assert curves.answer()["loss"]["value"] == [1.0, 2.0, 3.0]


def test_rotated_file_is_read_with_its_predecessors(tmp_path: Path, steps_file: Path) -> None:
    steps_file.write_bytes(line(1, loss=1.0))
    curves = Curves(tmp_path)
    curves.follow()
    steps_file.rename(steps_file.with_name("steps.jsonl.1"))
    steps_file.write_bytes(line(2, loss=2.0))
    assert curves.follow() == 2
    assert curves.answer()["loss"]["step"] == [1, 2]


def test_memory_and_answer_are_bounded_and_the_ends_stay(
    tmp_path: Path, steps_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POINTS_KEPT_MAX", 100)
    steps_file.write_bytes(b"".join(line(step, loss=float(step)) for step in range(1, 5001)))
    curves = Curves(tmp_path)
    assert curves.follow() == 5000
    kept = curves.answer()["loss"]["step"]
    assert len(kept) < 100
    assert kept[0] == 1
    assert kept[-1] > 4800
    assert kept == sorted(kept)
    assert curves.answer()["loss"]["value"] == [float(step) for step in kept]


def test_page_receives_at_most_so_many_points(tmp_path: Path, steps_file: Path) -> None:
    values = [1000.0 if step == 1234 else 0.0 for step in range(3000)]
    steps_file.write_bytes(b"".join(line(step, loss=value) for step, value in enumerate(values)))
    curves = Curves(tmp_path)
    curves.follow()
    assert len(curves.answer()["loss"]["value"]) <= POINTS_MAX + 2
    assert max(curves.answer()["loss"]["value"]) == 1000.0, "a peak is kept"
