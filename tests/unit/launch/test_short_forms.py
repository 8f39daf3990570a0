"""Texts in the place of sections, and what they stand for."""

from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.environment.verifiers.settings import PythonSettings
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.short_forms import expand_short_forms


def text_run(*, without: str = "", **workload: Any) -> dict[str, Any]:
    kept = {key: value for key, value in TEXT["workload"].items() if key != without}
    return {**TEXT, "workload": kept | workload}


def test_file_and_function_are_a_task() -> None:
    raw = text_run(without="env", dataset="problems.jsonl", reward="my_reward.py:score")
    workload = parse_plan(raw, source="test").file.workload
    assert (workload.dataset.path, workload.env) == ("problems.jsonl", "my_reward.py:score")
    assert raw["workload"]["dataset"] == "problems.jsonl", "the document of the caller is not changed"


def test_env_and_reward_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="test: workload has both `env` and `reward`"):
        parse_plan(text_run(reward="my_reward.py:score"), source="test")


def test_function_is_a_verifier() -> None:
    raw = text_run() | {
        "environment": {"rewards": {"task": 0.0, "mine": 1.0}, "verifiers": {"mine": "my.py:score"}}
    }
    verifier = parse_plan(raw, source="test").services["environment"].verifiers["mine"]
    assert verifier == PythonSettings(path="my.py", function="score")


def test_document_without_short_forms_stays() -> None:
    raw = parse_plan(text_run(), source="test").document()
    assert expand_short_forms(raw) == raw
    assert expand_short_forms({"workload": 3, "environment": {"verifiers": []}}) == {
        "workload": 3,
        "environment": {"verifiers": []},
    }
