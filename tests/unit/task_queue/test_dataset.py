from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.task_queue.dataset import ROW_BYTES_MAX, read_dataset


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_rows_are_read_in_file_order_and_blank_lines_skipped(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.jsonl",
        '{"prompt_id": "a", "prompt": "1+1=", "answer": "2", "bin": "easy"}',
        "",
        '{"prompt_id": "b", "prompt": "größer?"}',
        "",
    )
    first, second = read_dataset(path)
    assert (first.prompt_id, first.prompt, first.answer, first.bin) == ("a", "1+1=", "2", "easy")
    assert (second.prompt_id, second.prompt, second.answer, second.bin) == ("b", "größer?", "", "all")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "is empty"),
        (("", "  "), "is empty"),
        (('{"prompt_id": "a", "prompt": "x"}', "{oops"), "Line 2 of dataset train.jsonl is malformed"),
        (('{"prompt_id": "a"}',), "Line 1 .* `prompt`"),
        (('{"prompt_id": "a", "prompt": "x", "answr": "y"}',), "answr"),
        (('{"prompt_id": "a", "prompt": 3}',), "Line 1 .* Expected `str`"),
        (
            ('{"prompt_id": "a", "prompt": "x"}', '{"prompt_id": "a", "prompt": "y"}'),
            "Line 2 .* line 1 has it too",
        ),
        (('{"prompt_id": "", "prompt": "x"}',), "it is empty"),
        (('{"prompt_id": "a", "prompt": "' + "x" * ROW_BYTES_MAX + '"}',), "one message"),
    ],
)
def test_bad_dataset_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_dataset(write(tmp_path / "train.jsonl", *lines))


def test_missing_dataset_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tidegate up"):
        read_dataset(tmp_path / "train.jsonl")


def test_dataset_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_dataset(path)
