import msgspec
import pytest

from tidegate.core.prices import Prices, dollars, usd_per_million


def test_platform_costs_what_its_parts_cost() -> None:
    prices = Prices(actor_usd_per_h=0.5, environment_usd_per_h=0.25, learner_usd_per_h=3.0)
    assert prices.usd_per_h(num_actors=4, num_environments=2, num_learners=1) == 5.5


@pytest.mark.parametrize("section", [{"actor_usd_per_h": -1}, {"learner_usd_per_h": 1e9}, {"actor_usd": 1}])
def test_invalid_price_and_unknown_key_are_refused(section: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, Prices)


def test_million_samples_at_a_thousand_a_second_are_a_thousand_seconds() -> None:
    assert usd_per_million(3.6, per_s=1_000.0) == pytest.approx(1.0)


def test_idle_platform_has_an_infinite_price_a_million_and_free_machines_none() -> None:
    assert usd_per_million(1.0, per_s=0.0) == float("inf")
    assert usd_per_million(0.0, per_s=0.0) == 0.0


@pytest.mark.parametrize(
    ("usd", "text"), [(0.0, "$0.00"), (0.115741, "$0.1157"), (1.289, "$1.29"), (1e4, "$10,000.00")]
)
def test_dollars_are_cents_or_four_digits(usd: float, text: str) -> None:
    assert dollars(usd) == text
