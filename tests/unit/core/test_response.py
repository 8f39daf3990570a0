import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.response import FRESH, STANDARD_TIERS, Response, Tier, out_of_order, respond, tier_at

lags_of_a_batch = st.lists(st.integers(0, 60), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("lag", "tier"), [(0, None), (1, None), (2, 2), (5, 2), (6, 6), (20, 6), (21, 21), (500, 21)]
)
def test_standard_tiers_apply_from_their_lag(lag: int, tier: int | None) -> None:
    found = tier_at(STANDARD_TIERS, lag)
    assert (found.from_lag if found else None) == tier


def test_farthest_trajectory_decides_the_tier() -> None:
    assert respond(STANDARD_TIERS, [0, 0, 7]).tier == 6
    assert respond(STANDARD_TIERS, [1, 1, 1]) is FRESH


def test_nothing_is_done_without_a_table_or_a_batch() -> None:
    assert respond((), [50]) is FRESH
    assert respond(STANDARD_TIERS, []) is FRESH


@given(lags_of_a_batch, st.floats(0.1, 1.0))
def test_recency_shifts_trust_and_leaves_the_sum(lags: list[int], decay: float) -> None:
    weights = respond((Tier(from_lag=1, recency_decay=decay),), lags).weights
    if not weights:
        assert decay == 1.0 or len(set(lags)) == 1 or max(lags) == 0
        return
    assert math.isclose(sum(weights), len(lags), rel_tol=1e-9)
    for one, weight in zip(lags, weights, strict=True):
        for other, other_weight in zip(lags, weights, strict=True):
            # Each version of lag costs the same factor.
            assert math.isclose(weight, other_weight * decay ** (one - other), rel_tol=1e-6)


@given(lags_of_a_batch)
def test_an_actor_critic_is_only_ever_tightened(lags: list[int]) -> None:
    settings = ActorCriticSettings(objective="none", clip=0.3)
    under = settings.under(respond(STANDARD_TIERS, lags))
    assert under.clip <= settings.clip
    assert under.clip_c <= under.clip_rho <= settings.clip_rho
    assert under.learning_rate <= settings.learning_rate
    assert under.objective == ("vtrace" if max(lags) >= 6 else "none")


@given(lags_of_a_batch)
def test_a_language_model_is_only_ever_tightened(lags: list[int]) -> None:
    settings = GrpoSettings(objective="grpo", kl_weight=0.01, clip_high=0.28)
    under = settings.under(respond(STANDARD_TIERS, lags))
    assert under.clip_low <= settings.clip_low
    assert under.clip_high <= settings.clip_high
    assert under.importance_cap <= settings.importance_cap
    assert under.kl_weight >= settings.kl_weight
    assert under.objective == ("tis" if max(lags) >= 6 else "grpo")


def test_an_objective_that_corrects_already_stays() -> None:
    corrected = Response(tier=6, corrected=True)
    assert GrpoSettings(objective="decoupled_ppo").under(corrected).objective == "decoupled_ppo"


def test_fresh_data_changes_no_setting() -> None:
    assert ActorCriticSettings().under(FRESH) == ActorCriticSettings()
    assert GrpoSettings().under(FRESH) == GrpoSettings()


def test_applied_settings_are_reported_as_numbers() -> None:
    assert FRESH.figures() == {}
    figures = respond(STANDARD_TIERS, [6, 8]).figures()
    assert figures["tier"] == 6
    assert figures["clip"] == 0.1
    assert figures["learning_rate_scale"] == 0.5
    assert figures["weight_min"] < 1.0


def test_a_table_out_of_order_is_noticed() -> None:
    assert out_of_order(STANDARD_TIERS) is None
    assert out_of_order((Tier(from_lag=4), Tier(from_lag=4))) == 4
