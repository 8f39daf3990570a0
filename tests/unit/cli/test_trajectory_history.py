from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli.run_folder import id_of, write_accounting
from tidegate.cli.trace import render
from tidegate.cli.trajectory_history import read_trajectory_history, sentence
from tidegate.core.errors import NotFoundError


def test_trained_trajectory_tells_its_version_lag_and_stages(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    history = read_trajectory_history(tmp_path, id_of(3))
    assert history.state == "trained"
    assert history.stale_by_versions == 1
    assert [stage.stage for stage in history.stages] == [
        "trajectory.generate",
        "store.append",
        "trajectory.consume",
    ]
    assert [stage.started_at_s for stage in history.stages] == sorted(
        stage.started_at_s for stage in history.stages
    )
    assert "was trained at 0-aaaa@1, 1 versions" in sentence(history)


def test_dropped_trajectory_tells_why(tmp_path: Path) -> None:
    write_accounting(tmp_path, arrived=9, retired=1)
    text = sentence(read_trajectory_history(tmp_path, id_of(10)))
    assert "was dropped as retired" in text
    assert "the run ended before an actor took it" in text


def test_trajectory_on_its_way_is_known_from_the_journal(tmp_path: Path) -> None:
    write_accounting(tmp_path, admitted=12, arrived=9, retired=1)
    history = read_trajectory_history(tmp_path, id_of(12))
    assert history.state == "admitted"
    assert "has not arrived at the store yet" in sentence(history)


def test_waiting_trajectory_says_what_it_waits_for(tmp_path: Path) -> None:
    write_accounting(tmp_path, arrived=9, batches=3)
    assert "waits for a batch" in sentence(read_trajectory_history(tmp_path, id_of(9)))


def test_unknown_trajectory_is_refused_with_an_example(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    with pytest.raises(NotFoundError, match=rf"such as {id_of(1)}"):
        read_trajectory_history(tmp_path, "t-7")


@pytest.mark.parametrize("seq", [1, 9, 10, 12])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_waterfall_fits_its_terminal(tmp_path: Path, seq: int, width: int) -> None:
    write_accounting(tmp_path)
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render(read_trajectory_history(tmp_path, id_of(seq)), width=width))
    lines = console.export_text().splitlines()
    assert any(id_of(seq) in line for line in lines)
    assert max(map(len, lines)) <= width
