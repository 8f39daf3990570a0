"""docs/environments.md: every task is in it, its example of a task works, its section of a run file is one."""

import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.tasks.registry import TASKS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_page_has_a_row_for_every_task(text: str) -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    missing, unknown = set(TASKS) - set(rows), set(rows) - set(TASKS) - {"env"}
    assert not missing, f"add a row to docs/environments.md for {sorted(missing)}"
    assert not unknown, f"docs/environments.md has rows for no registered task: {sorted(unknown)}"


@pytest.mark.slow
def test_bins_of_the_page_are_those_of_the_tasks(text: str) -> None:
    for name, task in TASKS.items():
        bins = {problem.bin for problem in task.problems("train", seed=0)}
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        families = {re.sub(r"-[0-9]+$", "", bin_name) for bin_name in bins}
        assert all(f"`{family}" in row for family in families), (name, families)
        ends = {bin_name.rpartition("-")[2] for bin_name in bins if "-" in bin_name}
        assert all(re.search(rf"-{end}`", row) for end in sorted(ends, key=int)[-1:]), (name, ends)


def test_example_of_a_task_is_one(text: str) -> None:
    [source] = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class " in code]
    module = ModuleType("reversal")
    exec(compile(source, str(PAGE), "exec"), module.__dict__)  # noqa: S102  the page's own example, no data
    task = module.Reversal()
    train, heldout = (task.problems(split, seed=0) for split in ("train", "heldout"))
    assert train
    assert heldout
    for demonstration in task.demonstrations(seed=0, count=5):
        problem = next(problem for problem in train if problem.prompt == demonstration.prompt)
        assert task.score(problem, demonstration.completion).reward == 1.0
        assert task.score(problem, problem.prompt_id).reward == 0.0


def test_example_of_a_section_is_one(text: str) -> None:
    blocks = [
        yaml.safe_load(each) for each in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
    [section] = [block["environment"] for block in blocks if "environment" in block]
    config = msgspec.convert(section, EnvironmentConfig)
    assert config.weights() == {"task": 1.0, "taste": 0.3, "safe": 0.0}
    assert config.on_error == "partial"
