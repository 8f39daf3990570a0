"""A person's demonstrations become those of the run, and what cannot be trained on is refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.launch import demonstrations
from tidegate.launch.carried_files import files_of
from tidegate.launch.demonstrations import import_demonstrations, read_demonstrations
from tidegate.launch.preparation import prepare_pod, write_datasets
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.warmup_check import check_warmup


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


PAIRS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(20)]


def pretrained(file: str, **policy: Any) -> RunPlan:
    kind = {"kind": "transformers", "path": "/models/base", "context_length": 64, **policy}
    learner = {"warmup": {"demonstrations": file}}
    return parse_plan({**TEXT, "policy": kind, "learner": learner}, source="test")


@pytest.mark.parametrize(
    ("row", "prompt", "completion", "exchanges"),
    [
        ({"prompt": "1+1=", "completion": "2"}, "1+1=", "2", ()),
        ({"prompt": "a", "completion": "b", "exchanges": [["c", "d"]]}, "a", "b", (("c", "d"),)),
        ({"messages": [user("hi"), assistant("ho")]}, "hi", "ho", ()),
        ({"prompt": [user("hi")], "completion": [assistant("ho")]}, "hi", "ho", ()),
        (
            {"prompt": "hi", "completion": [assistant("ho"), user("so"), assistant("go")]},
            "hi",
            "ho",
            (("so", "go"),),
        ),
        (
            {"messages": [{"role": "system", "content": "be brief"}, user("hi"), assistant("ho")]},
            '[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]',
            "ho",
            (),
        ),
        # A text that would be read as messages stays a text.
        ({"messages": [user("[1]"), assistant("ho")]}, '[{"role":"user","content":"[1]"}]', "ho", ()),
    ],
)
def test_each_form_of_a_line_is_a_prompt_and_the_model_s_turns(
    tmp_path: Path, row: Any, prompt: str, completion: str, exchanges: tuple[tuple[str, str], ...]
) -> None:
    [read] = read_demonstrations(write(tmp_path / "chats.jsonl", [row]))
    assert (read.prompt, read.completion, read.exchanges) == (prompt, completion, exchanges)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "1+1="}, r"line 1 of .* is no demonstration. it has question"),
        ({"prompt": "1+1="}, "is no demonstration"),
        ({"prompt": "1+1=", "completion": ""}, "empty prompt or an empty answer"),
        ({"messages": [assistant("ho")]}, "has the roles assistant"),
        ({"messages": [user("hi")]}, "has the roles user"),
        ({"messages": []}, "of no message"),
        ({"messages": [user("hi"), assistant("ho"), user("so")]}, "the assistant has the last word"),
        (
            {"messages": [user("hi"), assistant("ho"), {"role": "tool", "content": "x"}, assistant("y")]},
            "tools",
        ),
        ({"messages": [user("hi"), assistant(None)]}, r"its messages cannot be read.*\$\[1\]\.content"),
        ({"prompt": 3, "completion": "x"}, "its prompt cannot be read"),
        ({"prompt": "a", "completion": "b", "exchanges": [["c"]]}, "its exchanges cannot be read"),
        ([1], "is no JSON object"),
    ],
)
def test_a_line_that_is_no_demonstration_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "chats.jsonl", [row])
    with pytest.raises(ConfigError, match=message):
        import_demonstrations(str(path), tmp_path / "data")
    assert not (tmp_path / "data" / "demonstrations.jsonl").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has 0 demonstrations"),
        (PAIRS[:1] * 5, "has 5 demonstrations, 1 of them different"),
        (PAIRS, "more than 10 demonstrations"),
    ],
)
def test_too_few_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], message: str
) -> None:
    monkeypatch.setattr(demonstrations, "NUM_MAX", 10)
    path = write(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(ConfigError, match=message):
        import_demonstrations(str(path), tmp_path / "data")
    assert not (tmp_path / "data" / "demonstrations.jsonl").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*lost"):
        import_demonstrations("lost.jsonl", tmp_path)


def test_they_take_the_place_of_the_task_s_and_stay_for_a_resumed_run(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "data"
    write_datasets(pretrained(str(path)), folder)
    made = (folder / "demonstrations.jsonl").read_bytes()
    assert [json.loads(line) for line in made.splitlines()] == PAIRS
    write(path, PAIRS[:5])
    write_datasets(pretrained(str(path)), folder)
    assert (folder / "demonstrations.jsonl").read_bytes() == made


def test_they_stand_for_those_of_several_environments(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "data"
    alone = pretrained(str(path))
    envs = [{"env": "sums", "weight": 1}, {"env": "arithmetic", "weight": 1}]
    text = {key: value for key, value in TEXT["workload"].items() if key != "env"}
    document = {**alone.document(), "workload": {**text, "envs": envs}}
    write_datasets(parse_plan(document, source="test"), folder)
    made = (folder / "demonstrations.jsonl").read_bytes()
    assert [json.loads(line) for line in made.splitlines()] == PAIRS
    assert (folder / "environments" / "1" / "train.jsonl").exists()


def test_the_pod_of_a_learner_that_warms_up_a_pretrained_model_writes_them(tmp_path: Path) -> None:
    prepare_pod("learner", pretrained("task"), data_dir=tmp_path / "learner")
    assert (tmp_path / "learner" / "data" / "demonstrations.jsonl").stat().st_size > 1000


def test_the_file_travels_to_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "pairs.jsonl", PAIRS)
    assert files_of(pretrained("pairs.jsonl")) == {"pairs.jsonl": path}
    assert files_of(pretrained("/volume/pairs.jsonl")) == {}
    assert files_of(pretrained("task")) == {}
    with pytest.raises(ConfigError, match="there is no file"):
        files_of(pretrained("lost.jsonl"))


def test_a_task_without_demonstrations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demonstrations.jsonl").touch()
    with pytest.raises(ConfigError, match="arithmetic has no demonstrations"):
        check_warmup(pretrained("task"), tmp_path)
    assert check_warmup(pretrained(""), tmp_path) is None
