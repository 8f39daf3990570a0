"""A user's own objective: what is accepted, what is refused before the run, and that it trains as a built-in one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tidegate.algorithms.clipped_objectives import tis_objective
from tidegate.algorithms.completion_tokens import CompletionTokens, ObjectiveValues
from tidegate.algorithms.grpo import OBJECTIVES
from tidegate.algorithms.grpo_settings import OBJECTIVE_NAMES, GrpoSettings
from tidegate.core.errors import ConfigError
from tidegate.learner.optim.own_objective import OwnObjective, open_objective
from tidegate.runtime.own_code.references import OwnReference

SETTINGS = GrpoSettings(objective="my_objective.py:my_loss")
REFERENCE = OwnReference("my_objective.py:my_loss", "/somewhere/my_objective.py", "my_loss")


def ratio(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return (tokens.logprobs_BT - tokens.behavior_BT).exp() * tokens.advantages_BT


def completions(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return tokens.mean_per_completion(tokens.logprobs_BT)[:, 0] * tokens.advantages_B


def raises(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return getattr(tokens, "no_such_tensor")  # noqa: B009  # a type checker would find it


def scalar(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return tokens.logprobs_BT.mean()


def detached(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return ratio(tokens, settings).detach()


def constant(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return torch.zeros_like(tokens.logprobs_BT) * tokens.logprobs_BT


def infinite(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return tokens.logprobs_BT / 0.0


def root(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return (tokens.logprobs_BT - tokens.logprobs_BT.detach()).abs().sqrt() * tokens.advantages_BT


def number(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return 1.0


def limited(tokens: CompletionTokens, settings: GrpoSettings) -> Any:
    return ObjectiveValues(ratio(tokens, settings), torch.zeros(3))


def of_one(tokens: CompletionTokens) -> Any:
    return tokens.logprobs_BT


@pytest.mark.parametrize("function", [ratio, completions, tis_objective])
def test_values_of_tokens_and_of_completions_are_accepted(function: Any) -> None:
    OwnObjective(function, REFERENCE).check(SETTINGS)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises, r"AttributeError at \S*test_own_objective\.py:[0-9]+ in raises"),
        (scalar, r"its values have the shape \(\), and these completions \(4, 3\) or \(4,\)"),
        (detached, "its loss has no gradient"),
        (constant, "its loss has no gradient"),
        (infinite, "its loss on a small batch is (inf|nan|-inf)"),
        (root, "its gradient on a small batch is not finite"),
        (number, "it returned float"),
        (limited, "its limited_BT is no tensor of booleans"),
    ],
)
def test_mistake_is_refused_by_one_call_before_the_run(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        OwnObjective(function, REFERENCE).check(SETTINGS)
    assert "my_objective.py:my_loss (" in str(refused.value)


def test_function_of_another_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot be called as \(tokens, settings\)"):
        OwnObjective(of_one, REFERENCE)


def test_file_is_loaded_and_tried(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def my_loss(tokens, settings):\n"
        "    return (tokens.logprobs_BT - tokens.proximal_BT).exp() * tokens.advantages_BT\n"
    )
    assert open_objective(GrpoSettings(objective="mine.py:my_loss"), folder=str(tmp_path)) is not None
    assert open_objective(GrpoSettings(objective="tis"), folder=str(tmp_path)) is None
    with pytest.raises(ConfigError, match="There is no 'pp0' among the objectives"):
        open_objective(GrpoSettings(objective="pp0"), folder=str(tmp_path))


def test_own_objective_is_given_the_proximal_policy_and_stays_under_a_response() -> None:
    assert SETTINGS.reads_proximal
    assert GrpoSettings(objective=SETTINGS.objective, proximal="interpolated").reads_version_gap
    assert set(OBJECTIVES) == set(OBJECTIVE_NAMES)
