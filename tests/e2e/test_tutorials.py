"""Every command of the tutorials, typed as a reader does: an empty folder, the order of the page, exit code 0."""

import sys
from pathlib import Path

import pytest

from tests.support.documented_commands import ROOT
from tests.support.tutorials import Step, StepError, steps_of, walk

TUTORIALS = ROOT / "docs" / "tutorials"
# Typed by tests/cluster/test_tutorial.py.
ON_A_CLUSTER = ("to_a_cluster.md",)
LOCAL = sorted(page for page in TUTORIALS.glob("*.md") if page.name not in ("README.md", *ON_A_CLUSTER))


@pytest.mark.e2e
@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [*LOCAL, ROOT / "docs" / "from_other_libraries.md"], ids=lambda page: page.stem
)
def test_commands_of_a_tutorial_work_in_an_empty_folder(tmp_path: Path, page: Path) -> None:
    sys.stdout.write("\n".join(walk(page, tmp_path)))


def test_steps_are_files_commands_and_commands_beside_others() -> None:
    page = (
        "\n```yaml\n# folder/run.yaml\nrun: x\n```\n```yaml\nrun: not named\n```\n```sh\nsleep 1\n```\n"
        "```text\noutput\n```\n```sh\n# in another terminal\necho a\n```\n"
    )
    assert list(steps_of(page, {"sleep 1": "sleep 2"})) == [
        Step(path="folder/run.yaml", text="# folder/run.yaml\nrun: x\n"),
        Step(commands="sleep 2\n"),
        Step(commands="# in another terminal\necho a\n", beside=True),
    ]
    with pytest.raises(ValueError, match="no line 'echo b'"):
        list(steps_of(page, {"echo b": ""}))


def test_a_block_beside_another_runs_while_that_one_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "\n```sh\nwhile ! test -e there; do sleep 0.05; done\necho seen\n```\n"
        "```sh\n# in another terminal\ntouch there\necho made\n```\n"
    )
    assert walk(page, tmp_path) == ["made\n", "seen\n"]


def test_next_block_is_typed_where_the_last_one_ended(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n```sh\nmkdir a\ncd a\nexport SAID='b c'\n```\n```sh\npwd\necho \"$SAID\"\n```\n")
    assert walk(page, tmp_path) == ["", f"{tmp_path / 'a'}\nb c\n"]


@pytest.mark.parametrize("line", ["false", "false | true", "false\necho on"])
def test_command_that_fails_ends_the_tutorial(tmp_path: Path, line: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"\n```sh\n{line}\n```\n")
    with pytest.raises(StepError, match="exit 1"):
        walk(page, tmp_path)
