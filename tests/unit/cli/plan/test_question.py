import pytest

from tidegate.cli.plan.options import BalanceOptions, PriceOptions, RolloutOptions
from tidegate.cli.plan.question import PlanFlags, ask
from tidegate.core.errors import ConfigError
from tidegate.core.planner.scaling import parse_curve
from tidegate.core.prices import Prices

SIXTEEN = PlanFlags(BalanceOptions(actors=16, actor_rate=1000.0, learner_rate=12000.0))


def test_speedups_are_typed_as_pairs() -> None:
    assert parse_curve("1:1, 2:1.9,4:3.5") == ((1, 1.0), (2, 1.9), (4, 3.5))
    with pytest.raises(ConfigError, match="no REPLICAS:SPEEDUP"):
        parse_curve("1:1,2")


def test_balance_alone_needs_no_rollouts() -> None:
    question, run = ask(SIXTEEN)
    assert (question.rollouts, run) == (None, None)
    assert (question.loop.batch_size, question.loop.max_lag, question.after_s) == (256, 4, 60.0)
    assert question.prices == Prices()


def test_rates_follow_from_how_long_rollouts_and_updates_take() -> None:
    question, _ = ask(PlanFlags(BalanceOptions(actors=8), RolloutOptions(rollout="exp:0.040", train=0.010)))
    assert question.loop.actor_rate == pytest.approx(25.0)
    assert question.loop.learner_rate == pytest.approx(800.0)
    assert question.rollouts is not None
    assert (question.rollouts.group, question.rollouts.num_slots, question.loop.batch_size) == (8, 8, 8)


def test_training_of_a_step_is_divided_by_what_replicas_bring() -> None:
    question, _ = ask(
        PlanFlags(BalanceOptions(actors=8, replicas=2), RolloutOptions(rollout="exp:1", train=0.96))
    )
    assert question.rollouts is not None
    assert question.rollouts.train_s == pytest.approx(0.5)


def test_updates_a_second_times_the_batch_is_the_rate_of_the_learner() -> None:
    question, _ = ask(PlanFlags(BalanceOptions(actors=16, actor_rate=1000.0, update_rate=46.875, batch=256)))
    assert question.loop.learner_rate == 12_000.0


def test_places_of_an_actor_multiply_rollouts_and_rate() -> None:
    question, _ = ask(
        PlanFlags(
            BalanceOptions(actors=4, learner_rate=100.0),
            RolloutOptions(slots=8, rollout="exp:2", group=16),
        )
    )
    assert question.loop.actor_rate == pytest.approx(4.0)
    assert question.rollouts is not None
    assert (question.rollouts.num_slots, question.rollouts.train_s) == (32, pytest.approx(0.16))


def test_prices_are_typed_one_by_one() -> None:
    question, _ = ask(
        PlanFlags(
            BalanceOptions(actors=1, actor_rate=1.0, learner_rate=1.0), prices=PriceOptions(learner_price=7.0)
        )
    )
    assert question.prices == Prices(learner_usd_per_h=7.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (PlanFlags(), "number of actors"),
        (PlanFlags(BalanceOptions(actors=4)), "rate of the learner"),
        (PlanFlags(BalanceOptions(actors=4, learner_rate=1.0)), "rate of an actor"),
        (
            PlanFlags(BalanceOptions(actors=4, actor_rate=1.0, learner_rate=1.0, update_rate=1.0)),
            "give one of them",
        ),
        (
            PlanFlags(
                BalanceOptions(actors=4, actor_rate=1.0, learner_rate=1.0),
                prices=PriceOptions(actor_price=-1.0),
            ),
            "no number of dollars",
        ),
    ],
)
def test_what_is_missing_or_typed_twice_is_named(flags: PlanFlags, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(flags)
