import pytest

from tidegate.core.prices import Prices
from tidegate.core.receipt import EndedTotal, Receipt, Usage, lines_of_receipt, receipt_of

PRICES = Prices(actor_usd_per_h=1.0, environment_usd_per_h=0.5, learner_usd_per_h=4.0)


def receipt(*, prices: Prices = PRICES, usd_per_h: float | None = None, steps: int = 3_000_000) -> Receipt:
    usage = Usage().with_start(elapsed_s=1_800.0, cpu_s=3_600.0, num_gpus=2)
    return receipt_of(
        "run-1",
        unit="tokens",
        steps=steps,
        trained=EndedTotal(90, 600),
        dropped={
            "stale": EndedTotal(10, 300),
            "failed": EndedTotal(2, 100),
            "retired": EndedTotal(20, 0),
            "invalid": EndedTotal(),
        },
        num_folded=0,
        usage=usage.with_start(elapsed_s=5_400.0, cpu_s=0.0, num_gpus=0),
        prices=prices,
        replicas={"actor": 2, "environment": 2, "learner": 1},
        usd_per_h=usd_per_h,
    )


def test_hours_of_all_starts_cost_the_prices_of_the_replicas() -> None:
    found = receipt()
    assert (found.starts, found.hours, found.cpu_hours, found.gpu_hours) == (2, 2.0, 1.0, 1.0)
    assert found.usd == pytest.approx((2 * 1.0 + 2 * 0.5 + 4.0) * 2)
    assert found.usd_per_million == pytest.approx(14.0 / 3)
    assert found.price == "run file"


def test_waste_is_shared_by_reason_with_the_most_steps_first_and_priced() -> None:
    found = receipt()
    assert [(each.reason, each.trajectories, each.share) for each in found.wasted] == [
        ("stale", 10, pytest.approx(0.3)),
        ("failed", 2, pytest.approx(0.1)),
        ("retired", 20, 0.0),
    ]
    assert found.usd_wasted == pytest.approx(0.4 * 14.0)


def test_source_of_the_price_is_told() -> None:
    assert receipt(prices=Prices()).price == "examples"
    assert receipt(usd_per_h=3.0).price == "option"
    assert receipt(usd_per_h=3.0).usd == 6.0
    [cost] = [text for label, text in lines_of_receipt(receipt(prices=Prices())) if label == "cost"]
    assert "example prices" in cost


def test_run_that_trained_nothing_has_no_price_of_a_step() -> None:
    assert receipt(steps=0).usd_per_million is None
