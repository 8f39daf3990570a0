"""Times by name: their means, quantiles and tails, and the slowest of several."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import (
    Distribution,
    Exponential,
    Fixed,
    Lognormal,
    parse_distribution,
    parse_duration,
    slowest_quantile,
)
from tidegate.core.errors import ConfigError

SPREAD = [Exponential(0.04), Lognormal(2.0, 1.0), Lognormal(0.5, 0.25)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fixed:0.5", Fixed(0.5)),
        ("fixed:0", Fixed(0.0)),
        (" exp:0.040 ", Exponential(0.04)),
        ("lognormal:2:1", Lognormal(2.0, 1.0)),
        ("0.010", Fixed(0.01)),
        ("250ms", Fixed(0.25)),
        ("fixed:1h30m", Fixed(5400.0)),
        ("exp:40ms", Exponential(0.04)),
        ("lognormal:5m:0.5", Lognormal(300.0, 0.5)),
    ],
)
def test_distribution_is_written_in_one_word(text: str, expected: Distribution) -> None:
    assert parse_distribution(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gauss:1:2",
        "exp",
        "exp:",
        "exp:0",
        "exp:-1",
        "exp:nan",
        "exp:inf",
        "exp:1:2",
        "fixed:-1",
        "lognormal:1",
        "lognormal:1:0",
        "lognormal:1:nan",
        "lognormal:1:1e9",
        "lognormal:0:1",
        "exp:1e300",
        "exp:5 minutes",
        "const:0.5",
        "nowhere.txt",
        "weibull:1",
        "lognormal:1:2:3",
        "hist:rollouts.txt",
    ],
)
def test_invalid_distribution_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="write fixed:S, exp:MEAN or lognormal:MEAN:C"):
        parse_distribution(text)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", SPREAD)
def test_mean_is_the_integral_of_the_quantiles(distribution: Distribution) -> None:
    num = 200_000
    total = sum(distribution.quantile((index + 0.5) / num) for index in range(num))
    assert total / num == pytest.approx(distribution.mean_s, rel=2e-3)


@given(st.sampled_from(SPREAD), st.floats(0.001, 0.999))
def test_survival_is_the_inverse_of_the_quantile(distribution: Distribution, share: float) -> None:
    assert distribution.survival(distribution.quantile(share)) == pytest.approx(1.0 - share, abs=1e-9)


@pytest.mark.parametrize("distribution", [*SPREAD, Fixed(0.5)])
def test_every_uniform_gives_a_time(distribution: Distribution) -> None:
    for share in (0.0, 1e-300, 0.5, 1.0):
        assert 0.0 <= distribution.quantile(share) < math.inf
        assert 0.0 <= slowest_quantile(distribution, share, num=16) < math.inf


def test_golden_values() -> None:
    assert Exponential(0.04).quantile(0.95) == pytest.approx(0.04 * math.log(20))
    heavy = Lognormal(1.0, 1.0)
    assert heavy.sigma == pytest.approx(0.832555, abs=1e-6)
    assert heavy.quantile(0.5) == pytest.approx(math.sqrt(0.5))
    assert heavy.quantile(0.95) == pytest.approx(2.7812, abs=1e-3)
    assert (Fixed(2.0).survival(1.9), Fixed(2.0).survival(2.0)) == (1.0, 0.0)


@pytest.mark.parametrize("distribution", SPREAD)
def test_slowest_of_several_is_drawn_like_the_maximum_of_them(distribution: Distribution) -> None:
    """The slow twin draws all of them."""
    rng, num_draws = random.Random(0), 20_000
    twin = sorted(max(distribution.quantile(rng.random()) for _ in range(8)) for _ in range(num_draws))
    for share in (0.1, 0.5, 0.9):
        expected = twin[int(share * num_draws)]
        assert slowest_quantile(distribution, share, num=8) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("1h30m", 5400), ("500ms", 0.5), (" 2m 5s ", 125)],
)
def test_duration_adds_its_parts(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5 minutes", "1d", "s", "5x"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as 90s"):
        parse_duration(text)
