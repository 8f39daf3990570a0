from typing import get_args

import msgspec
import pytest

from tidegate.algorithms.grpo_settings import GrpoSettings, ObjectiveName
from tidegate.core.response import FRESH, Response

NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
STALE = Response(
    tier=6, corrected=True, clip=0.1, importance_cap=1.0, learning_rate_scale=0.5, kl_scale=2.0, weights=()
)


@pytest.mark.parametrize(
    "section",
    [
        {"clip_lo": 0.2},
        {"clip_low": 0.0},
        {"objective": ""},
        {"minibatches": 0},
        {"beta2": 1.0},
        {"proximal": "backward"},
        {"kl_in": "both"},
        {"length_divisor_tokens": -1},
        {"tba_beta": 0.0},
        {"discount": 0.0},
    ],
)
def test_settings_refuse_typos_and_values_out_of_range(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, GrpoSettings)


@pytest.mark.parametrize("name", ["icepop", "sequence", "cispo"])
def test_bounds_between_which_nothing_lies_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"{name}_low 6.0 is not below {name}_high 5.0"):
        msgspec.convert({f"{name}_low": 6.0, f"{name}_high": 5.0}, GrpoSettings)


@pytest.mark.parametrize("name", NAMES)
def test_settings_report_the_inputs_of_an_objective(name: ObjectiveName) -> None:
    settings = GrpoSettings(objective=name)
    assert settings.reads_proximal is (name in {"tis", "decoupled_ppo", "icepop", "sequence_mask"})
    assert settings.reads_reference is (name == "tba")
    assert settings.reads_values is (name == "ppo")
    assert settings.learns_from_equal_rewards is (name in {"ppo", "tba"})
    assert not settings.reads_version_gap
    assert GrpoSettings(objective=name, kl_weight=0.1).reads_reference


@pytest.mark.parametrize("name", NAMES)
def test_stale_data_tightens_and_never_loosens(name: ObjectiveName) -> None:
    settings = GrpoSettings(objective=name, kl_weight=0.1)
    under = settings.under(STALE)
    assert under.objective == ("tis" if name in {"none", "grpo", "ppo"} else name)
    # A value head tells completions apart whose group earned the same.
    assert under.drop_zero_signal is (name != "ppo")
    assert (under.clip_low, under.clip_high, under.dppo_delta) == (0.1, 0.1, 0.1)
    assert (under.importance_cap, under.cispo_high) == (1.0, 1.0)
    assert under.kl_weight == pytest.approx(0.2)
    assert under.tba_beta == pytest.approx(2.0 * settings.tba_beta)
    assert under.learning_rate == pytest.approx(0.5 * settings.learning_rate)
    # A cap is for weights that are cut; a mask with such a bound would leave nothing of fresh data.
    assert (under.icepop_low, under.icepop_high) == (settings.icepop_low, settings.icepop_high)
    assert settings.under(FRESH) == settings


def test_a_gspo_clip_far_below_the_tiers_stays() -> None:
    narrow = GrpoSettings(objective="gspo", clip_low=3e-4, clip_high=4e-4).under(STALE)
    assert (narrow.clip_low, narrow.clip_high) == (3e-4, 4e-4)


def test_a_cap_below_the_smallest_weight_leaves_bounds_that_hold_something() -> None:
    under = GrpoSettings(objective="cispo", cispo_low=1.2, cispo_high=4.0).under(STALE)
    assert (under.cispo_low, under.cispo_high) == (0.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_averaged_as_in_the_paper_of_the_objective_unless_a_run_says_otherwise(
    name: ObjectiveName,
) -> None:
    assert GrpoSettings(objective=name).averages_tokens is (name != "gspo")
    assert GrpoSettings(objective=name, token_mean=True).averages_tokens
    assert not GrpoSettings(objective=name, token_mean=False).averages_tokens
