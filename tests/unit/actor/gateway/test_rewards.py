"""Posted rewards: bounded numbers, and what a harness sends besides."""

from typing import Any

import msgspec
import pytest

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.rewards import Reward, read_reward


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {"reward": "1"},
        {"components": {}},
        {"reward": 1.0, "components": {"a": "b"}},
        {"reward": 1.0, "components": "many"},
        {"reward": 1.0, "log": "x" * 10_000},
        {"reward": 1.0, "notes": "x" * 10_000},
        {"reward": 1.0, "log": 3, "notes": "x"},
        {"reward": 1.0, "components": {str(index): 0.0 for index in range(100)}},
        {"reward": 1.0, **{str(index): 0.0 for index in range(100)}},
        {"reward": 1.0, "turns": 1e300},
    ],
)
def test_invalid_rewards_are_refused(raw: Any) -> None:
    with pytest.raises(RefusedCallError, match="The body is no reward"):
        read_reward(msgspec.json.encode(raw))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b'{"reward": NaN}',
        b'{"reward": 1e400}',
        b"[" * 5000,
        b'{"reward": 1.0, "turns": 1' + b"0" * 400 + b"}",
        b'{"reward": 1.0, "metrics": {"turns": 1' + b"0" * 400 + b"}}",
    ],
)
def test_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedCallError, match="The body is no reward"):
        read_reward(body)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_reward_that_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Reward(number)
    with pytest.raises(ValueError, match="finite"):
        Reward(0.0, {"part": number})


def test_further_fields_are_kept() -> None:
    body = {
        "reward": 1,
        "components": {"exact": 1.0},
        "log": "right",
        "turns": 3,
        "metrics": {"format": 0.5, "won": True},
        "trace": {"steps": ["a"]},
        "harness": "mine",
    }
    assert read_reward(msgspec.json.encode(body)) == Reward(
        1.0,
        {"turns": 3.0, "metrics.format": 0.5, "metrics.won": 1.0, "exact": 1.0},
        'right\n{"trace":{"steps":["a"]},"harness":"mine"}',
    )


def test_own_component_wins_over_a_further_field_of_its_name() -> None:
    body = {"reward": 0.0, "components": {"exact": 1.0}, "exact": 0.5}
    assert read_reward(msgspec.json.encode(body)).components == {"exact": 1.0}
