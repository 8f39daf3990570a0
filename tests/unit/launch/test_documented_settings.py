"""Run files and settings that the documents name are those that the code reads."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.launch.overrides import parse_yaml
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_parsing import parse_plan

ROOT = Path(__file__).parents[3]
# Two pages name modules and spans by words of the same form.
OTHER_NAMES = ("invariants.md", "metrics.md")
PAGES = [
    page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if page.name not in OTHER_NAMES
]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
# One word a section: those that are mappings of settings in a run file.
SECTION_NAMES = (
    "workload policy staleness response long_tail admission task_queue actor environment trajectory_store"
)
SECTIONS = "|".join((*SECTION_NAMES.split(), "learner"))
SETTING = re.compile(rf"`((?:{SECTIONS})(?:\.[a-z_0-9]+)+)`")
# A mapping whose keys are a user's.
OPEN = "environment.verifiers."
FILE = re.compile(r"^policy\.(onnx|safetensors)$")


def run_files() -> Iterator[tuple[str, str]]:
    """Each block of a page that is a whole run file."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if re.search(r"^run: ", block, re.MULTILINE) and re.search(r"^workload:", block, re.MULTILINE):
                yield page.name, block


RUN_FILES = list(run_files())


@pytest.mark.parametrize(
    ("page", "text"), RUN_FILES, ids=[f"{page}-{i}" for i, (page, _) in enumerate(RUN_FILES)]
)
def test_whole_run_files_of_the_documents_can_be_read(page: str, text: str) -> None:
    parse_plan(parse_yaml(text, source=page), source=page)


def known_settings() -> set[str]:
    """Each path of a run file with every default written out, and of the chart's values."""
    document = read_run_file(ROOT / "runs" / "arithmetic.yaml", []).document()
    values = parse_yaml(
        (ROOT / "helm" / "tidegate" / "values.yaml").read_text(encoding="utf-8"), source="values"
    )
    pods = {f"{service}.{path}" for service in SECTIONS.split("|") for path in paths(values["podDefaults"])}
    return set(paths(document)) | set(paths(values)) | pods


def paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from paths(cast("dict[str, Any]", value), f"{prefix}{key}.")


def test_settings_that_the_documents_name_exist() -> None:
    known = known_settings()
    unknown = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in SETTING.findall(page.read_text(encoding="utf-8"))
        if name not in known and not FILE.match(name) and not name.startswith(OPEN)
    ]
    assert not unknown


def test_a_setting_that_does_not_exist_is_found() -> None:
    assert "learner.pass_tokens" in known_settings()
    assert SETTING.findall("`learner.tokens_per_pass`") == ["learner.tokens_per_pass"]
    assert "learner.tokens_per_pass" not in known_settings()
