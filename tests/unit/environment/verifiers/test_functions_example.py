"""The example whose rewards are hidden tests: its run file, and the tests in its prompts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.verifiers.code_cases import parse_tests
from tidegate.launch.run_file import read_run_file

EXAMPLE = Path(__file__).parents[4] / "examples" / "functions"
ROWS = [json.loads(line) for line in (EXAMPLE / "functions.jsonl").read_text().splitlines()]


def test_run_file_rewards_tests_alone() -> None:
    plan = read_run_file(EXAMPLE / "run.yaml", [])
    config = plan.services["environment"]
    assert isinstance(config, EnvironmentConfig)
    assert config.rewards == {"task": 0.0, "tests": 1.0}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["prompt_id"])
def test_prompt_asks_for_the_function_of_its_tests(row: dict[str, Any]) -> None:
    tests = parse_tests(json.dumps(row["answer"]))
    assert tests.function == row["prompt_id"]
    assert f"{tests.function}(" in row["prompt"][-1]["content"]
    assert len({json.dumps(case.result) for case in tests.cases}) > 1, "a constant would pass"


def test_functions_are_distinct() -> None:
    assert len({row["prompt_id"] for row in ROWS}) == len(ROWS) >= 64
