"""Own code and prompts of a run file in the pods: one ConfigMap, read-only, held against its digests."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import (
    SERVICES,
    WITH_INFERENCE,
    Manifest,
    component,
    containers,
    named,
    needs_helm,
    of_kind,
    own_pods,
    pods,
    refusal,
    render,
)
from tidegate.cli.app import run
from tidegate.launch import carried_files
from tidegate.launch.carried_files import DIGESTS_FILE, check_mounted

pytestmark = [pytest.mark.chart, needs_helm]

LOADS = {"task-queue", "actor", "environment", "learner"}
RUN = """\
run: mine
workload: {kind: text, env: "my_task.py:Reverse", dataset: {path: data/problems.parquet, held_out_share: 0.2}}
policy: {kind: char_lm}
batch_size: 8
max_running: 8
"""
TASK = """\
from parts.words import reverse


class Reverse:
    def score(self, problem, completion):  # <&>
        return float(completion == reverse(problem.answer))
"""
BINARY = bytes(range(256))


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """What `tidegate chart` writes for a project of two modules and a file that is no text."""
    project = tmp_path / "project"
    (project / "parts").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "run.yaml").write_text(RUN)
    (project / "my_task.py").write_text(TASK)
    (project / "parts" / "__init__.py").write_text("")
    (project / "parts" / "words.py").write_text("def reverse(text):\n    return text[::-1]\n")
    (project / "data" / "problems.parquet").write_bytes(BINARY)
    assert run(["chart", str(project / "run.yaml"), "-o", str(tmp_path / "values.yaml")]) == 0
    written = yaml.safe_load((tmp_path / "values.yaml").read_text())
    return {"run": written["run"], "files": {**written["files"], "mountPath": str(tmp_path / "mounted")}}


def mount(objects: list[Manifest], pod: Manifest) -> Path:
    """Write the files of a pod as the kubelet mounts them; returns the folder."""
    (volume,) = (each["configMap"] for each in pod["spec"]["volumes"] if each["name"] == "files")
    (place,) = (each for each in containers(pod)[-1]["volumeMounts"] if each["name"] == "files")
    assert place["readOnly"] is True
    source = named(objects, "ConfigMap", volume["name"])
    for item in volume["items"]:
        path = Path(place["mountPath"]) / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source["data"].get(item["key"])
        path.write_bytes(
            base64.b64decode(source["binaryData"][item["key"]]) if text is None else text.encode()
        )
    return Path(place["mountPath"])


def test_sections_that_pods_do_not_follow_are_refused_and_left_out_by_the_options_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = tmp_path / "run.yaml"
    document = {
        "run": "cartpole",
        "workload": {"kind": "segments", "env": "CartPole-v1"},
        "policy": {"kind": "mlp"},
        "batch_size": 4,
        "notify": {"url": "https://hooks.example/x"},
    }
    run_file.write_text(yaml.safe_dump(document))
    assert run(["chart", str(run_file)]) == 2
    said = capsys.readouterr().err
    assert "has notify, which no pod follows" in said
    [option] = re.findall(r"--set [a-z]+=\w+", said)
    assert run(["chart", str(run_file), *option.split(), "-o", str(tmp_path / "values.yaml")]) == 0
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert named(render(values=values), "ConfigMap", "t-run")


def test_pods_that_load_files_have_them_as_they_are_on_the_laptop(values: dict[str, Any]) -> None:
    objects = render(values=values)
    found = own_pods(objects)
    for service in SERVICES:
        has = any(each["name"] == "files" for each in found[service]["spec"]["volumes"])
        assert has == (service in LOADS), service
    served = {component(pod): pod for _, pod in pods(render(values=values | WITH_INFERENCE))}["inference"]
    assert any(each["name"] == "files" for each in served["spec"]["volumes"])
    folder = mount(objects, found["environment"])
    assert (folder / "my_task.py").read_text() == TASK
    assert (folder / "parts" / "__init__.py").read_bytes() == b""
    assert (folder / "data" / "problems.parquet").read_bytes() == BINARY
    assert set(json.loads((folder / DIGESTS_FILE).read_text())) == {
        "my_task.py",
        "parts/__init__.py",
        "parts/words.py",
        "data/problems.parquet",
    }
    check_mounted(str(folder))


def test_run_file_of_the_pods_finds_them_where_they_are_mounted(values: dict[str, Any]) -> None:
    objects = render(values=values)
    for name in ("t-run", "t-check"):
        mounted = yaml.safe_load(named(objects, "ConfigMap", name)["data"]["run.yaml"])
        assert mounted["files_dir"] == values["files"]["mountPath"]
    assert "files_dir" not in values["run"]
    assert "files_dir" not in yaml.safe_load(named(render(), "ConfigMap", "t-run")["data"]["run.yaml"])


def test_check_before_an_installation_loads_the_code_from_a_configmap_of_its_own(
    values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    values["run"]["workload"] = {"kind": "text", "env": "my_task.py:Reverse"}
    objects = render(values=values)
    pod = named(objects, "Job", "t-check")["spec"]["template"]
    folder = mount(objects, pod)
    checked = folder.parent / "run.yaml"
    checked.write_text(named(objects, "ConfigMap", "t-check")["data"]["run.yaml"])
    assert run(["check", str(checked)]) == 2
    assert "my_task.py:Reverse has no prompts" in capsys.readouterr().err
    (folder / "my_task.py").write_text(TASK + "\n")
    assert run(["check", str(checked)]) != 0
    assert "my_task.py is another file" in capsys.readouterr().err
    hooks = {each["metadata"]["name"] for each in objects if "helm.sh/hook" in str(each["metadata"])}
    assert {"t-check", "t-check-files"} <= hooks


def test_pods_of_all_pools_have_them(values: dict[str, Any]) -> None:
    pool = {"pools": {"spot": {"nodeSelector": {"pool": "spot"}}}}
    actors = [pod for _, pod in pods(render(values={**values, "actor": pool})) if component(pod) == "actor"]
    assert [any(each["name"] == "files" for each in pod["spec"]["volumes"]) for pod in actors] == [True, True]


def test_a_changed_file_replaces_the_pods_that_load_it_and_leaves_the_others_theirs(
    values: dict[str, Any],
) -> None:
    changed = [dict(each) for each in values["files"]["contents"]]
    (task,) = (each for each in changed if each["path"] == "my_task.py")
    task["text"] += "\n"
    task["sha256"] = hashlib.sha256(task["text"].encode()).hexdigest()
    before, after = (
        own_pods(render(values=values)),
        own_pods(render(values={**values, "files.contents": changed})),
    )
    assert {name for name in SERVICES if before[name] != after[name]} == LOADS
    # An immutable ConfigMap of another name: a pod of before keeps what it mounted.
    assert all(before[name]["spec"]["volumes"] != after[name]["spec"]["volumes"] for name in LOADS)


def test_files_that_were_edited_in_the_values_are_refused(values: dict[str, Any]) -> None:
    contents = [{**each, "text": "x"} if "text" in each else each for each in values["files"]["contents"]]
    assert "is not the file whose SHA-256 is" in refusal({**values, "files.contents": contents})
    twice = values["files"]["contents"] * 2
    assert "is given twice" in refusal({**values, "files.contents": twice})
    for path in ("/etc/passwd", "../up.py", "parts/../../up.py"):
        assert "files" in refusal({"files.contents": [{"path": path, "text": "x"}]})


def test_entries_written_by_hand_need_no_digest() -> None:
    objects = render(values={"files.contents": [{"path": "my_env.py", "text": "x = 1\n"}]})
    (found,) = (each for each in of_kind(objects, "ConfigMap") if each.get("immutable"))
    assert json.loads(found["data"]["digests"]) == {"my_env.py": hashlib.sha256(b"x = 1\n").hexdigest()}


def test_release_with_the_largest_files_stays_below_what_helm_stores() -> None:
    """The chart takes a third of the Secret's 1 MiB, and files are in it three times, each in base64."""
    assert 330_000 + 3 * carried_files.COMPRESSED_BYTES_MAX * 4 // 3 < 1 << 20
