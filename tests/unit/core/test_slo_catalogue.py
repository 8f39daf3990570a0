import msgspec
import pytest

from tidegate.core.drift import jensen_shannon
from tidegate.core.slo import BURN_FACTOR
from tidegate.core.slo_catalogue import REMEDIES, SloConfig, SlosConfig, declared

OFF_BY_DEFAULT = {"actor_idle_ratio", "clipped_fraction"}


def test_every_objective_of_the_section_is_in_the_catalogue_and_those_that_need_a_choice_are_off() -> None:
    on = declared(SlosConfig(), max_lag=4, max_age_s=300.0)
    assert set(on) == set(SlosConfig.__struct_fields__) - OFF_BY_DEFAULT
    everything = SlosConfig(**{name: SloConfig(enabled=True) for name in SlosConfig.__struct_fields__})
    assert set(declared(everything, max_lag=4, max_age_s=300.0)) == set(SlosConfig.__struct_fields__)
    nothing = SlosConfig(**{name: SloConfig(enabled=False) for name in SlosConfig.__struct_fields__})
    assert declared(nothing, max_lag=4, max_age_s=300.0) == {}


def test_staleness_budget_gives_its_objectives_their_bounds() -> None:
    on = declared(SlosConfig(), max_lag=7, max_age_s=60.0)
    assert (on["lag_max"].bound, on["lag_max"].target) == (7.0, 1.0)
    assert on["lag_p95"].bound == 7.0
    assert on["age_p95"].bound == 30.0


def test_run_file_changes_what_it_names_and_nothing_else() -> None:
    section = msgspec.convert({"lag_p95": {"bound": 2}, "bin_drift": {"window_s": 60}}, SlosConfig)
    plain, changed = (declared(config, max_lag=4, max_age_s=300.0) for config in (SlosConfig(), section))
    assert changed["lag_p95"] == msgspec.structs.replace(plain["lag_p95"], bound=2.0)
    assert changed["bin_drift"] == msgspec.structs.replace(plain["bin_drift"], window_s=60.0)
    assert {**changed, "lag_p95": None, "bin_drift": None} == {**plain, "lag_p95": None, "bin_drift": None}


@pytest.mark.parametrize("section", [{"lag_p59": {}}, {"lag_p95": {"target": 0.5}}, {"lag_p95": {"bond": 2}}])
def test_typing_errors_and_targets_that_cannot_alert_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, SlosConfig)


def test_alert_of_every_default_can_fire() -> None:
    assert all(BURN_FACTOR * (1.0 - slo.target) < 1.0 for slo in declared(
        SlosConfig(), max_lag=4, max_age_s=300.0
    ).values())  # fmt: skip


def test_default_bound_of_drift_matches_its_comment() -> None:
    bound = declared(SlosConfig(), max_lag=4, max_age_s=300.0)["bin_drift"].bound
    assert jensen_shannon({"easy": 1.0, "hard": 1.0}, {"easy": 1.0, "hard": 0.6}) == pytest.approx(
        bound, abs=2e-3
    )
    assert jensen_shannon({"rest": 9.0, "hard": 1.0}, {"rest": 9.0, "hard": 0.4}) == pytest.approx(
        bound, abs=2e-3
    )


def test_every_objective_has_a_remedy() -> None:
    assert set(REMEDIES) == set(SlosConfig.__struct_fields__)
