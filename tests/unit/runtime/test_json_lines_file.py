"""Lines of a file that is only appended to, read again whatever ended their writer."""

from pathlib import Path

import msgspec

from tidegate.runtime.json_lines_file import JsonLinesFile, newest_lines, whole_lines


class Step(msgspec.Struct):
    step: int


def test_lines_that_were_cut_or_are_of_another_kind_are_left_out() -> None:
    lines = [
        b'{"step": 1}\n',
        b'{"step": 2, "more": [1',
        b"\xff\n",
        b'{"step": "three"}\n',
        b"[" * 5000,
        b'{"step": 4}',
    ]
    assert [each.step for each in whole_lines(lines, Step)] == [1, 4]


def test_lines_are_read_from_the_newest_on_over_the_files_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = JsonLinesFile(path, bytes_max=30, files_kept=2)
    for step in range(9):
        log.append(msgspec.json.encode(Step(step)) + b"\n")
    log.close()
    with path.open("ab") as file:
        file.write(b'{"step": 9')  # killed while it wrote
    found = [each.step for each in whole_lines(newest_lines(path, files_kept=2), Step)]
    assert found == [8, 7, 6, 5, 4], "two lines fit into a file; the oldest file was replaced"
