import errno
import json
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from tests.support.disks import file_size_limited
from tidegate.admission.samples import SystemSample
from tidegate.core.balance import Signals
from tidegate.runtime.json_lines_file import JsonLinesFile


def open_file(path: Path, *, bytes_max: int = 100_000, files_kept: int = 2) -> JsonLinesFile:
    return JsonLinesFile(path, bytes_max=bytes_max, files_kept=files_kept)


def sample(number: int) -> SystemSample:
    signals = Signals(available=3.0 * number, batch_size=2, admission_state="admitting")
    return SystemSample(float(number), "balanced", signals, {"actor.steps_total": 2.0 * number})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_line_holds_every_signal_by_name_and_the_statistics_beside_them(tmp_path: Path) -> None:
    file = open_file(tmp_path / "stats.jsonl")
    file.append(sample(4).line())
    file.close()
    [line] = lines(tmp_path / "stats.jsonl")
    assert (line["at_s"], line["bottleneck"], line["admission_state"]) == (4.0, "balanced", "admitting")
    assert line["queue_depth_batches"] == 6.0
    assert line["values"] == {"actor.steps_total": 8.0}
    named = {name: line[name] for name in Signals.__struct_fields__}
    assert msgspec.convert(named, Signals) == sample(4).signals


def test_file_goes_on_after_a_restart(tmp_path: Path) -> None:
    for life in range(3):
        file = open_file(tmp_path / "stats.jsonl")
        for number in range(10 * life, 10 * life + 10):
            file.append(sample(number).line())
        file.close()
    assert [line["at_s"] for line in lines(tmp_path / "stats.jsonl")] == list(range(30))


def test_line_cut_off_by_a_kill_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_bytes(sample(1).line() + b'{"at_s": 2.0, "val')
    file = open_file(path)
    file.append(sample(3).line())
    file.close()
    assert path.read_bytes().splitlines(keepends=True)[2] == sample(3).line()


def test_file_is_rotated_and_the_oldest_samples_go_first(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    file = open_file(path, bytes_max=5_000)
    for number in range(60):
        file.append(sample(number).line())
    file.close()
    names = ["stats.jsonl.2", "stats.jsonl.1", "stats.jsonl"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name).stat().st_size < 5_000 + len(sample(60).line()) for name in names)
    kept = [int(line["at_s"]) for name in names for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 60))
    assert len(kept) < 60


def test_sample_that_a_full_disk_cuts_is_lost_alone(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    file = open_file(path)
    file.append(sample(1).line())
    with file_size_limited(path.stat().st_size + 10), pytest.raises(OSError, match=r"No space|too large"):
        file.append(sample(2).line())
    file.append(sample(3).line())
    file.append(sample(4).line())
    whole = [json.loads(line)["at_s"] for line in path.read_text().splitlines() if line.endswith("}")]
    assert whole == [1.0, 3.0, 4.0]


@pytest.mark.parametrize("method", ["open", "replace"])
def test_file_that_cannot_be_exchanged_is_exchanged_at_a_later_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    path = tmp_path / "stats.jsonl"
    file = open_file(path, bytes_max=len(sample(1).line()))
    file.append(sample(1).line())

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(Path, method, refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files"):
                file.append(sample(2).line())
    file.append(sample(3).line())
    assert [line["at_s"] for line in lines(path)] == [3.0]
    assert [line["at_s"] for line in lines(tmp_path / "stats.jsonl.1")] == [1.0]
