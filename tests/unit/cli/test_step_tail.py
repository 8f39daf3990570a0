from pathlib import Path
from typing import IO, Any, cast

import msgspec
import pytest

from tidegate.cli.callbacks.run_events import RunEvents
from tidegate.cli.step_tail import StepTail
from tidegate.runtime.run_event_log import EVENTS_FILE, read_events


def line(step: int) -> bytes:
    return msgspec.json.encode({"step": step}) + b"\n"


def steps_of(updates: list[dict[str, int]]) -> list[int]:
    return [update["step"] for update in updates]


def test_each_update_comes_once_when_its_line_is_whole(tmp_path: Path) -> None:
    tail = StepTail(tmp_path)
    assert tail.new() == (False, [])
    path = tmp_path / "learner" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(line(1) + line(2)[:4])
    from_first, updates = tail.new()
    assert (from_first, steps_of(updates)) == (True, [1])
    with path.open("ab") as file:
        file.write(line(2)[4:] + b"{damaged\n" + line(3))
    from_first, updates = tail.new()
    assert (from_first, steps_of(updates)) == (False, [2, 3])
    assert tail.new() == (False, [])


def test_rotated_log_comes_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "learner" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(line(1))
    tail = StepTail(tmp_path)
    tail.new()
    path.rename(path.with_name("steps.jsonl.1"))
    path.write_bytes(line(2))
    from_first, updates = tail.new()
    assert (from_first, steps_of(updates)) == (True, [1, 2])


def test_log_that_is_rotated_between_two_looks_at_it_is_read_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learner" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(line(1))
    tail, really_open, away = StepTail(tmp_path), Path.open, [True]

    def opened(self: Path, *args: Any, **named: Any) -> IO[Any]:
        if self == path and away.pop():
            raise FileNotFoundError(str(self))
        return cast("IO[Any]", really_open(self, *args, **named))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        assert tail.new() == (True, [])
    assert steps_of(tail.new()[1]) == [1]


def test_logs_that_are_there_and_gone_at_the_next_moment_end_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(_self: Path) -> bool:
        return True

    monkeypatch.setattr(Path, "is_file", there)
    assert not (tmp_path / EVENTS_FILE).exists()
    assert StepTail(tmp_path).new() == (False, [])
    assert list(read_events(tmp_path, "evaluation")) == []
    assert list(RunEvents(tmp_path, since_s=0.0).new()) == []
