"""Files on their way into pods: which they are, what is too large, and a pod that has others."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.launch.test_run_file import TEXT
from tidegate.cli.chart import values_of
from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.launch import carried_files
from tidegate.launch.carried_files import DIGESTS_FILE, carried, check_mounted, files_of
from tidegate.launch.run_file import read_document
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan

SEGMENTS: dict[str, Any] = {
    "run": "mine",
    "workload": {"kind": "segments", "env": "games.mine:Mine-v0"},
    "policy": {"kind": "mlp"},
    "batch_size": 2,
    "max_running": 6,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, started = tmp_path / "project", tmp_path / "started"
    for each in (folder / "games", folder / "saved", started):
        each.mkdir(parents=True)
    monkeypatch.chdir(started)
    (folder / "task.py").write_text("class Words: pass\n")
    (folder / "games" / "__init__.py").write_text("")
    (folder / "games" / "mine.py").write_text("import gymnasium\nimport rules\n")
    (folder / "rules.py").write_text("x = 1\n")
    (folder / "saved" / "state.json").write_text("{}")
    (folder / "saved" / "data.arrow").write_bytes(b"\xff")
    return folder


def text_plan(project: Path, **dataset: Any) -> RunPlan:
    workload = {**TEXT["workload"], "env": "task.py:Words", "dataset": dataset}
    return parse_plan({**TEXT, "workload": workload, "files_dir": str(project)}, source="test")


def test_code_and_datasets_are_carried_by_their_paths_from_the_run_file(project: Path) -> None:
    found = files_of(text_plan(project, path="saved", held_out_split="test"))
    assert set(found) == {"task.py", "saved/state.json", "saved/data.arrow"}


def test_module_of_an_environment_is_carried_with_its_package_and_what_it_imports(project: Path) -> None:
    found = files_of(parse_plan({**SEGMENTS, "files_dir": str(project)}, source="test"))
    assert set(found) == {"games/__init__.py", "games/mine.py", "rules.py"}
    installed = {**SEGMENTS["workload"], "env": "gymnasium:CartPole-v1"}
    plan = parse_plan({**SEGMENTS, "workload": installed, "files_dir": str(project)}, source="test")
    assert files_of(plan) == {}


def test_dataset_on_a_volume_of_the_pods_is_not_carried(project: Path) -> None:
    assert set(files_of(text_plan(project, path="/data/prompts.jsonl"))) == {"task.py"}


def test_code_in_the_folder_where_the_run_starts_has_its_path_from_there(project: Path) -> None:
    (project / "task.py").unlink()
    Path("task.py").write_text("class Words: pass\n")
    assert files_of(text_plan(project)) == {"task.py": Path("task.py").absolute()}


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"path": "../outside.jsonl"}, r"workload\.dataset\.path: .*outside\.jsonl is outside of"),
        ({"path": "typo.jsonl"}, r"workload\.dataset\.path: there is no .*typo\.jsonl"),
    ],
)
def test_what_a_pod_would_not_find_is_refused(project: Path, dataset: dict[str, Any], said: str) -> None:
    (project.parent / "outside.jsonl").touch()
    with pytest.raises(ConfigError, match=said):
        files_of(text_plan(project, **dataset))


def test_two_files_of_one_path_are_refused(project: Path) -> None:
    (project / "task.py").write_text("class Words: pass\n")
    Path("task.py").write_text("class Words: pass\nx = 2\n")
    (project / "reward.py").write_text("def score(p, c, a): return 1\n")
    plan = text_plan(project)
    other = parse_plan(
        {
            **plan.document(),
            "environment": {
                "rewards": {"mine": 1.0},
                "verifiers": {"mine": str(Path("task.py").absolute()) + ":Words"},
            },
        },
        source="test",
    )
    with pytest.raises(ConfigError, match=r"verifiers\.mine: task\.py is there twice"):
        files_of(other)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x" * (carried_files.STORED_BYTES_MAX + 1), "have more than 1,000,000 bytes, with data.bin"),
        (b"\xff" * 800_000, "have 1,066,668 bytes"),
        (os.urandom(carried_files.COMPRESSED_BYTES_MAX), "and 160,0.. compressed"),
    ],
    ids=["large", "large in base64", "incompressible"],
)
def test_more_than_a_configmap_or_helm_holds_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "data.bin").write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        carried({"data.bin": tmp_path / "data.bin"})
    assert "volume" in refused.value.fix


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="The run names 257 files"):
        carried({str(number): tmp_path / "x" for number in range(carried_files.NUM_MAX + 1)})


@pytest.mark.parametrize(
    "content", ["def f():\n    return '<&>: #'  \n", "\n\nx = 1", "é\tü\n", "a\r\nb", "\ufeffx", "", "on"]
)
def test_values_hold_every_text_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.py").write_bytes(content.encode())
    text = values_of({"run": "mine"}, carried({"x.py": tmp_path / "x.py"}))
    (entry,) = yaml.safe_load(text)["files"]["contents"]
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "x.py").write_bytes(content_of(entry))
    assert (folder / "x.py").read_bytes() == content.encode()


def content_of(entry: dict[str, str]) -> bytes:
    return base64.b64decode(entry["base64"]) if entry.get("base64") else entry.get("text", "").encode()


def test_values_without_files_are_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("run: mine\nlearner: {learning_rate: 1e-5}\nfiles_dir: /mnt\n")
    document = read_document(tmp_path / "run.yaml", ["seed=3"])
    assert yaml.safe_load(values_of(document, [])) == {
        "run": {"run": "mine", "learner": {"learning_rate": 1e-5}, "files_dir": "/mnt", "seed": 3}
    }


def test_pod_with_another_file_than_the_release_does_not_start(tmp_path: Path) -> None:
    check_mounted("")
    check_mounted(str(tmp_path))
    (tmp_path / "task.py").write_text("x = 1\n")
    (tmp_path / DIGESTS_FILE).write_text('{"task.py": "%s"}' % ("0" * 64))
    with pytest.raises(CorruptionError, match=r"task\.py is another file"):
        check_mounted(str(tmp_path))
    (tmp_path / "task.py").unlink()
    with pytest.raises(CorruptionError, match=r"task\.py is not there"):
        check_mounted(str(tmp_path))
    (tmp_path / DIGESTS_FILE).write_text("[]")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_mounted(str(tmp_path))
