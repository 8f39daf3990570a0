"""What is read of the output of a rollout, and of a prompt."""

from typing import Any

import pytest

from tidegate.core.errors import RecordError
from tidegate.environment.libraries.verifiers_env import COMPONENTS_MAX, played_of, text_of
from tidegate.environment.libraries.verifiers_settings import EpisodeVerdict, VerifiersSettings


def test_metrics_that_are_numbers_are_the_components() -> None:
    metrics = {"exact": 1.0, "turns": 2, "nothing": None, "nan": float("nan"), "text": "x"}
    output = {"reward": 0.5, "metrics": metrics, "error": None, "stop_condition": "done"}
    assert played_of(output) == EpisodeVerdict(0.5, {"exact": 1.0, "turns": 2.0}, "done")


def test_more_metrics_than_a_reward_takes_are_cut() -> None:
    output = {"reward": 1, "metrics": {f"m{number}": 1.0 for number in range(2 * COMPONENTS_MAX)}}
    assert len(played_of(output).components) == COMPONENTS_MAX


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({"reward": None}, "no number"),
        ({"reward": float("inf")}, "no number"),
        ({"reward": 1.0, "error": "ToolError: no server"}, "ToolError: no server"),
    ],
)
def test_an_error_or_a_reward_that_is_no_number_is_no_verdict(output: dict[str, Any], said: str) -> None:
    with pytest.raises(RecordError, match=said):
        played_of(output)


def test_a_prompt_is_kept_as_messages_without_empty_fields() -> None:
    assert text_of("plain") == "plain"
    assert text_of([{"role": "user", "content": "hi", "name": None}]) == '[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize("env_id", ["my-env", "owner/my-env", "owner/my-env@1.2.0"])
def test_the_module_of_an_id_is_that_which_the_library_imports(env_id: str) -> None:
    assert VerifiersSettings(id=env_id).module == "my_env"
