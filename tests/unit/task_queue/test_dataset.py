from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.task_queue.dataset import ROW_BYTES_MAX, open_dataset


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
    first, second = open_dataset(path)
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
        (
            (
                '{"prompt_id": "a", "prompt": "x", "env": "e"}',
                '{"prompt_id": "a", "prompt": "y", "env": "e"}',
            ),
            "Line 2 .* line 1 has it too",
        ),
        (
            ('{"prompt_id": "a", "prompt": "x", "env": "e"}', '{"prompt_id": "b", "prompt": "y"}'),
            "Line 2 .* has the bin 'all' in ''",
        ),
        (('{"prompt_id": "a", "prompt": "' + "x" * ROW_BYTES_MAX + '"}',), "one message"),
    ],
)
def test_bad_dataset_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_dataset(write(tmp_path / "train.jsonl", *lines))


def test_missing_dataset_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tidegate up"):
        open_dataset(tmp_path / "train.jsonl")


def test_dataset_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"prompt_id": "a", "prompt": "\xff"}')
    with pytest.raises(ConfigError, match=r"Line 1 .*(?i:utf-8)"):
        open_dataset(path)


def test_any_row_is_read_by_its_place(tmp_path: Path) -> None:
    """Blank lines, Windows line ends, texts of any length and a last line without an end are between the places."""
    lines = [
        f'{{"prompt_id": "{n}", "prompt": "{"é" * (n * 37 % 4096)}", "bin": "b{n % 3}"}}' for n in range(200)
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("\n\n".join(lines[:100]) + "\r\n  \n" + "\r\n".join(lines[100:]), encoding="utf-8")
    dataset = open_dataset(path)
    assert len(dataset) == 200
    for n in (0, 1, 99, 100, 101, 199, -1, 57):
        prompt = dataset[n]
        assert (prompt.prompt_id, prompt.bin, len(prompt.prompt)) == (
            str(n % 200), f"b{n % 200 % 3}", n % 200 * 37 % 4096,
        )  # fmt: skip
    assert [prompt.prompt_id for prompt in dataset[3:9:2]] == ["3", "5", "7"]
    assert dataset.bins[:4] == ["b0", "b1", "b2", "b0"]
    with pytest.raises(IndexError):
        dataset[200]
    dataset.close()


def test_file_that_changes_under_a_run_is_an_error_and_no_other_prompt(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.jsonl", '{"prompt_id": "a", "prompt": "x"}', '{"prompt_id": "b", "prompt": "y"}'
    )
    dataset = open_dataset(path)
    path.write_text('{"prompt_id": "a", "pro')
    with pytest.raises(CorruptionError, match="changed"):
        dataset[1]
    dataset.close()


def test_line_without_an_end_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"x" * (ROW_BYTES_MAX * 3))
    with pytest.raises(ConfigError, match=r"Line 1 .* more than"):
        open_dataset(path)


def test_rows_of_several_environments_name_them_and_may_have_one_id(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.jsonl",
        '{"prompt_id": "1", "prompt": "x", "bin": "sums/all", "env": "sums"}',
        '{"prompt_id": "1", "prompt": "y", "bin": "mine/all", "env": "mine"}',
    )
    dataset = open_dataset(path)
    assert [(prompt.prompt_id, prompt.env) for prompt in dataset] == [("1", "sums"), ("1", "mine")]
    assert dataset.env_of == {"sums/all": "sums", "mine/all": "mine"}
