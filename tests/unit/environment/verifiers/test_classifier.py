"""Scores from a classifier's logits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.environment.verifiers.classifier import score_of
from tidegate.environment.verifiers.settings import ClassifierSettings

logits = st.floats(-50.0, 50.0)


@given(st.lists(logits, min_size=2, max_size=5))
def test_probabilities_of_several_labels_are_their_softmax(values: list[float]) -> None:
    by_label = {str(index): value for index, value in enumerate(values)}
    total = sum(math.exp(value) for value in values)
    for label, value in by_label.items():
        assert score_of(by_label, label, "probability") == pytest.approx(math.exp(value) / total)


@given(logits)
def test_probability_of_a_single_label_is_the_logistic_function(value: float) -> None:
    assert score_of({"good": value}, "good", "probability") == pytest.approx(1 / (1 + math.exp(-value)))
    assert score_of({"good": value}, "good", "logit") == value


def test_far_apart_logits_are_no_overflow() -> None:
    assert score_of({"a": -1e4, "b": 1e4}, "a", "probability") == pytest.approx(0.0)
    assert score_of({"a": -1e4, "b": 1e4}, "b", "probability") == 1.0


def test_text_without_the_completion_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not show the completion"):
        ClassifierSettings(path="x", text="{prompt}")
