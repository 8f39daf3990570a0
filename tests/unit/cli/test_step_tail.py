from pathlib import Path

import msgspec

from tidegate.cli.step_tail import StepTail


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
