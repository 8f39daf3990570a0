"""A person's dataset becomes the rows of a run, from whatever kind of files it is in."""

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from tidegate.core.errors import ConfigError
from tidegate.runtime.prompt_sources import DatasetConfig
from tidegate.task_queue import dataset_files
from tidegate.task_queue.dataset import ROW_BYTES_MAX, Prompt, open_dataset
from tidegate.task_queue.dataset_import import import_dataset

pa = cast("Any", pyarrow)  # ships without types
pq = cast("Any", pyarrow.parquet)

ROWS: list[dict[str, Any]] = [
    {"prompt_id": f"p{n}", "prompt": f"{n}+1=", "answer": str(n + 1), "bin": "odd" if n % 2 else "even"}
    for n in range(10)
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def save_to_disk(folder: Path, rows: list[dict[str, Any]], *, num_shards: int = 2) -> Path:
    """As ``datasets`` 4 does it: shards as Arrow streams, their names in state.json."""
    folder.mkdir(parents=True)
    names = [f"data-{shard:05d}-of-{num_shards:05d}.arrow" for shard in range(num_shards)]
    per_shard = -(-len(rows) // num_shards)
    for shard, name in enumerate(names):
        table = pa.Table.from_pylist(rows[shard * per_shard : (shard + 1) * per_shard])
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.RecordBatchStreamWriter(sink, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=3)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def imported(tmp_path: Path, **settings: Any) -> list[Prompt]:
    folder = tmp_path / "run" / "data"
    import_dataset(msgspec.convert(settings, DatasetConfig), folder)
    dataset = open_dataset(folder / "train.jsonl")
    return list(dataset)


def held_out(tmp_path: Path) -> list[Prompt]:
    return list(open_dataset(tmp_path / "run" / "data" / "heldout.jsonl"))


def expected(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(row["prompt_id"], row["prompt"], row["answer"], row["bin"]) for row in rows]


def plain(prompts: list[Prompt]) -> list[tuple[str, str, str, str]]:
    return [(prompt.prompt_id, prompt.prompt, prompt.answer, prompt.bin) for prompt in prompts]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets", "jsonl_folder", "parquet_folder"])
def test_every_kind_of_file_gives_the_same_problems(tmp_path: Path, kind: str) -> None:
    match kind:
        case "jsonl":
            path = write_jsonl(tmp_path / "a.jsonl", ROWS)
        case "parquet":
            path = tmp_path / "a.parquet"
            pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=3)
        case "datasets":
            path = save_to_disk(tmp_path / "saved", ROWS)
        case "jsonl_folder":
            path = tmp_path / "many"
            path.mkdir()
            write_jsonl(path / "2.jsonl", ROWS[4:])
            write_jsonl(path / "1.jsonl", ROWS[:4])
            (path / "README.md").write_text("not data")
        case _:
            path = tmp_path / "many"
            path.mkdir()
            pq.write_table(pa.Table.from_pylist(ROWS[:5]), path / "1.parquet")
            pq.write_table(pa.Table.from_pylist(ROWS[5:]), path / "2.parquet")
    assert plain(imported(tmp_path, path=str(path))) == expected(ROWS)


def test_a_saved_folder_of_several_splits_gives_the_one_that_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save_to_disk(folder / "train", ROWS[:6])
    save_to_disk(folder / "test", ROWS[6:], num_shards=1)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert plain(imported(tmp_path, path=str(folder), held_out_split="test")) == expected(ROWS[:6])
    assert plain(held_out(tmp_path)) == expected(ROWS[6:])
    with pytest.raises(ConfigError, match=r"no split 'dev'.*train, test"):
        import_dataset(DatasetConfig(path=str(folder), split="dev"), tmp_path / "other")


def test_columns_have_the_names_that_a_person_gives_them(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "2+2", "solution": 4, "level": 3, "other": None}])
    (prompt,) = imported(
        tmp_path, path=str(path), prompt_column="question", answer_column="solution", bin_column="level"
    )
    assert (prompt.prompt, prompt.answer, prompt.bin) == ("2+2", "4", "3")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_chat_stays_a_chat_as_json(tmp_path: Path, kind: str) -> None:
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?\n"}]
    rows = [{"prompt": messages, "answer": "4"}]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_jsonl(path, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    (prompt,) = imported(tmp_path, path=str(path))
    assert json.loads(prompt.prompt) == messages


def test_without_ids_prompts_are_known_by_their_content(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "2"}, {"prompt": "a", "answer": "1"}]
    first = [
        prompt.prompt_id for prompt in imported(tmp_path, path=str(write_jsonl(tmp_path / "a.jsonl", rows)))
    ]
    assert len(set(first)) == 3, "two that differ in their answer are two; the same one again is told apart"
    assert first[2] == f"{first[0]}-2"
    path = str(write_jsonl(tmp_path / "b.jsonl", list(reversed(rows))))
    assert {prompt.prompt_id for prompt in imported(tmp_path / "again", path=path)} == set(first)


def test_a_share_is_held_out_by_content_so_that_order_and_copies_do_not_matter(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n % 500}"} for n in range(1000)]
    trained = imported(tmp_path, path=str(write_jsonl(tmp_path / "a.jsonl", rows)), held_out_share=0.2)
    kept_out = held_out(tmp_path)
    assert len(trained) + len(kept_out) == 1000
    assert {prompt.prompt for prompt in trained}.isdisjoint(prompt.prompt for prompt in kept_out)
    assert 140 <= len(kept_out) <= 260
    path = str(write_jsonl(tmp_path / "b.jsonl", list(reversed(rows))))
    imported(tmp_path / "again", path=path, held_out_share=0.2)
    assert {p.prompt for p in held_out(tmp_path / "again")} == {p.prompt for p in kept_out}


def test_held_out_problems_may_come_from_files_of_their_own(tmp_path: Path) -> None:
    path, other = write_jsonl(tmp_path / "a.jsonl", ROWS[:8]), write_jsonl(tmp_path / "b.jsonl", ROWS[8:])
    assert plain(imported(tmp_path, path=str(path), held_out_path=str(other))) == expected(ROWS[:8])
    assert plain(held_out(tmp_path)) == expected(ROWS[8:])


def test_a_run_goes_on_with_its_copy(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    before = plain(imported(tmp_path, path=str(path)))
    path.unlink()
    assert plain(imported(tmp_path, path=str(path))) == before


def test_an_import_that_failed_leaves_no_half_of_a_dataset(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*ROWS, {"prompt": ""}])
    with pytest.raises(ConfigError, match="empty prompt"):
        imported(tmp_path, path=str(path))
    assert not (tmp_path / "run" / "data" / "train.jsonl").exists()
    write_jsonl(path, ROWS)
    assert plain(imported(tmp_path, path=str(path))) == expected(ROWS)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([{"question": "x"}], {}, "line 1 of .* no column 'prompt'.*question.*prompt_column"),
        ([{"prompt": "x"}], {"answer_column": "solution"}, "no column 'solution'.*answer_column"),
        ([{"prompt": "x"}, {"prompt": None}], {}, "line 2 of .*empty prompt"),
        (
            [{"prompt": "x", "prompt_id": "a"}, {"prompt": "y", "prompt_id": "a"}],
            {},
            "line 2 .*'a'.*row 1 of",
        ),
        ([{"prompt": "x" * ROW_BYTES_MAX}], {}, "line 1 .*one message"),
        ([], {}, "too small"),
        ([{"prompt": "x"}], {"held_out_share": 0.5}, "too small"),
    ],
)
def test_bad_rows_are_named_with_what_to_do(
    tmp_path: Path, rows: list[dict[str, Any]], settings: dict[str, Any], message: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError, match=message):
        imported(tmp_path, path=str(path), **settings)


def test_lines_of_windows_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(json.dumps(row).encode() + b"\r\n" for row in ROWS))
    assert plain(imported(tmp_path, path=str(path))) == expected(ROWS)


def test_line_without_an_end_is_named_as_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "_LINE_BYTES_MAX", 128)
    path = write_jsonl(tmp_path / "a.jsonl", [ROWS[0], {"prompt": "x" * 128}])
    with pytest.raises(ConfigError, match=r"line 2 of .* 128 bytes or more"):
        imported(tmp_path, path=str(path))


def test_ids_of_a_column_can_be_left_aside(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": p, "prompt_id": "same"} for p in "xy"])
    prompts = imported(tmp_path, path=str(path), prompt_id_column="")
    assert "same" not in {prompt.prompt_id for prompt in prompts}


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("gone.jsonl", None, {}, "not there"),
        ("a.csv", b"prompt\nx\n", {}, "cannot be told from its name"),
        ("a.jsonl", b'{"prompt": "x"}\n[1]\n', {}, "line 2 of .* no JSON object"),
        ("a.jsonl", b"\xff\xfe\n", {}, "line 1 of .* no JSON object"),
        ("a.parquet", b"no parquet", {}, "cannot be read as Parquet"),
        ("a.bin", b'{"prompt": "x"}\n', {"format": "parquet"}, "cannot be read as Parquet"),
        ("saved/state.json", b'{"_data_files": [{"filename": "../../x.arrow"}]}', {}, "names no files"),
        ("saved/state.json", b'{"_data_files": [{"filename": "gone.arrow"}]}', {}, "as an Arrow stream"),
        ("saved/state.json", b"{", {}, "state.json cannot be read"),
        ("saved/dataset_dict.json", b'{"splits": []}', {}, "no split 'train'"),
    ],
)
def test_files_that_cannot_be_read_are_named_with_what_to_do(
    tmp_path: Path, name: str, content: bytes | None, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    source = path.parent if path.parent != tmp_path else path
    with pytest.raises(ConfigError, match=message):
        imported(tmp_path, path=str(source), **settings)


def test_two_rules_for_what_is_held_out_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="at most one"):
        DatasetConfig(path="a", held_out_share=0.1, held_out_split="test")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_dataset_in_object_storage_is_the_one_in_a_folder(tmp_path: Path, kind: str) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    write, name = {"file": (write_jsonl, "problems.jsonl"), "folder": (save_to_disk, "saved")}[kind]
    source = write(bucket / name, ROWS)
    expected = imported(tmp_path / "local", path=str(source))
    assert imported(tmp_path / "remote", path=source.as_uri()) == expected
    assert [path.name for path in (tmp_path / "remote" / "run" / "data").iterdir()] == ["train.jsonl"]


def test_dataset_that_is_not_in_its_bucket_is_refused_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.dataset: file://.* cannot be fetched"):
        imported(tmp_path, path=(tmp_path / "missing.jsonl").as_uri())
