"""Helm's commands of the documents are rendered, and kubectl's name objects that the chart makes.

What needs no helm is in tests/structure/test_documented_commands.py.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import CRD_APIS, EVERYTHING, ROOT, documents, needs_helm, render, run
from tests.support.documented_commands import PAGES, commands_of

pytestmark = [pytest.mark.chart, needs_helm]

INSTALLING = {"install", "upgrade", "template"}
# Flags that `helm template` does not have: they are about what is installed already.
NOT_OF_A_RENDER = {"--reset-then-reuse-values", "--create-namespace", "--force"}
# Kinds as the documents write them.
KINDS = {
    "deployment": "Deployment",
    "job": "Job",
    "cronjob": "CronJob",
    "statefulset": "StatefulSet",
    "jobset": "JobSet",
    "trainjob": "TrainJob",
    "leaderworkerset": "LeaderWorkerSet",
    "trainingrun": "TrainingRun",
}
RELEASES = ("rl", "t", "tidegate", "<release>")
# What adds every object that the documents name; two options of one workload are two renders.
RENDERED: tuple[dict[str, Any], ...] = (
    EVERYTHING,
    {"learner.kind": "JobSet", "doctor.enabled": True, "tls.selfSigned.enabled": True},
    {"learner.kind": "TrainJob"},
    {
        "actor.nodes": 2,
        "actor.workerContainers": [{"name": "server", "image": "server:1"}],
        "admission.kubernetes.enabled": False,
        "run.actor.server.update_dir": "/shared/versions",
    },
)

HELM_LINES = sorted(
    {
        command.words
        for page in PAGES
        for command in commands_of(page)
        if command.words[0] == "helm" and command.words[1] in INSTALLING and "helm/tidegate" in command.words
    }
)


@pytest.mark.parametrize("words", HELM_LINES, ids=" ".join)
def test_helm_command_of_the_documents_renders(words: tuple[str, ...], tmp_path: Path) -> None:
    mine = tmp_path / "my-run.yaml"
    # A run file under the key `run`, which the reader brings.
    mine.write_text("run: {seed: 2}\n", encoding="utf-8")
    arguments = [
        str(ROOT / word) if word.startswith("helm/") else str(mine) if word.endswith(".yaml") else word
        for word in words[2:]
        if word not in NOT_OF_A_RENDER
    ]
    apis = [part for api in CRD_APIS for part in ("--api-versions", api)]
    done = run("helm", "template", *arguments, *apis)
    assert done.returncode == 0, done.stderr


def test_kubectl_commands_of_the_documents_name_objects_of_the_chart() -> None:
    objects = [each for values in RENDERED for each in render(values=values)]
    there = {(each["kind"], each["metadata"]["name"].removeprefix("t-")) for each in objects}
    # Without hooks and revisions, so its Jobs have names of their own.
    kustomize = [
        each
        for path in sorted((ROOT / "k8s").rglob("*.yaml"))
        for each in documents(path.read_text(encoding="utf-8"))
        if "kind" in each and "metadata" in each
    ]
    there |= {(each["kind"], each["metadata"]["name"].removeprefix("tidegate-")) for each in kustomize}
    components = {each["metadata"].get("labels", {}).get("app.kubernetes.io/component") for each in objects}
    missing: list[str] = []
    for page in PAGES:
        for command in commands_of(page):
            if command.words[0] != "kubectl":
                continue
            for kind, name in named_objects(command.words):
                if (kind, name) not in there:
                    missing.append(f"{page.relative_to(ROOT)}: {command}: no {kind} {name}")
            for component in re.findall(r"app\.kubernetes\.io/component=([\w-]+)", " ".join(command.words)):
                if component not in components:
                    missing.append(f"{page.relative_to(ROOT)}: {command}: no component {component}")
    assert missing == []


def test_objects_that_a_command_names_are_read_without_their_release() -> None:
    assert list(named_objects(("kubectl", "scale", "deployment/rl-actor"))) == [("Deployment", "actor")]
    assert list(named_objects(("kubectl", "delete", "job", "t-a", "t-b"))) == [("Job", "a"), ("Job", "b")]
    assert list(named_objects(("kubectl", "exec", "rl-admission-0"))) == [("StatefulSet", "admission")]
    assert list(named_objects(("kubectl", "scale", "deployment/actor"))) == [
        ("Deployment", "no release: actor")
    ]


def named_objects(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Kinds and names, without the release, of the objects that a command of kubectl names."""
    found = [
        (KINDS[kind], name)
        for word in words
        for kind, slash, name in [word.removeprefix("--from=").partition("/")]
        if slash and kind in KINDS
    ]
    for at, word in enumerate(words):
        if word in KINDS and "create" not in words:
            found += [
                (KINDS[word], name)
                for name in words[at + 1 :]
                if re.fullmatch(r"(?:<release>|\w+)-\S+", name)
            ]
        if word == "exec" and at + 1 < len(words) and words[at + 1].endswith("-0"):
            found.append(("StatefulSet", words[at + 1].removesuffix("-0")))
    return [(kind, without_release(kind, name)) for kind, name in found]


def without_release(kind: str, name: str) -> str:
    """What follows the release; a TrainingRun has its release's name."""
    release, _, rest = name.partition("-")
    if kind == "TrainingRun" and name in RELEASES:
        return "t"
    return rest if release in RELEASES and rest else f"no release: {name}"
