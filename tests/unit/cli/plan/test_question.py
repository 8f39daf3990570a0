from pathlib import Path

import pytest

from tidegate.cli.plan.question import Flags, ask
from tidegate.cli.plan.specs import parse_durations, parse_speedup
from tidegate.core.errors import ConfigError
from tidegate.core.planner.tails import Durations, Exponential, Lognormal, Measured
from tidegate.core.prices import Prices

SIXTEEN = Flags(actors=16, actor_rate=1000.0, learner_rate=12000.0)


@pytest.mark.parametrize(
    ("text", "durations"),
    [
        ("exp:0.040", Exponential(0.040)),
        ("lognormal:2.0:1.5", Lognormal(2.0, 1.5)),
        ("const:0.5", Lognormal(0.5, 0.0)),
        ("3", Lognormal(3.0, 0.0)),
    ],
)
def test_durations_are_typed_by_name(text: str, durations: Durations) -> None:
    assert parse_durations(text, flag="--rollout") == durations


def test_durations_come_from_a_file_of_seconds(tmp_path: Path) -> None:
    path = tmp_path / "seconds.txt"
    path.write_text("0.3\n\n0.1\n", encoding="utf-8")
    assert parse_durations(str(path), flag="--rollout") == Measured((0.1, 0.3))


@pytest.mark.parametrize(
    "text", ["exp:", "exp:a", "lognormal:1", "lognormal:1:2:3", "nowhere.txt", "exp:-1", "weibull:1"]
)
def test_durations_that_are_none_are_refused_with_the_way_to_write_them(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_durations(text, flag="--rollout")
    assert caught.value.fix


def test_file_of_words_is_refused_by_its_first_word(tmp_path: Path) -> None:
    path = tmp_path / "seconds.txt"
    path.write_text("0.3\nslow\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'slow', which is no number"):
        parse_durations(str(path), flag="--rollout")


def test_speedups_are_typed_as_pairs() -> None:
    assert parse_speedup("1:1, 2:1.9,4:3.5") == ((1, 1.0), (2, 1.9), (4, 3.5))
    with pytest.raises(ConfigError, match="no REPLICAS:SPEEDUP"):
        parse_speedup("1:1,2")


def test_balance_alone_needs_no_rollouts() -> None:
    question, run = ask(SIXTEEN)
    assert (question.rollouts, run) == (None, None)
    assert (question.loop.batch_size, question.loop.max_lag, question.after_s) == (256, 4, 60.0)
    assert question.prices == Prices()


def test_rates_follow_from_how_long_rollouts_and_updates_take() -> None:
    question, _ = ask(Flags(actors=8, rollout="exp:0.040", train_s=0.010))
    assert question.loop.actor_rate == pytest.approx(25.0)
    assert question.loop.learner_rate == pytest.approx(800.0)
    assert question.rollouts is not None
    assert (question.rollouts.group, question.rollouts.num_slots, question.loop.batch_size) == (8, 8, 8)


def test_training_of_a_step_is_divided_by_what_replicas_bring() -> None:
    question, _ = ask(Flags(actors=8, rollout="exp:1", train_s=0.96, replicas=2))
    assert question.rollouts is not None
    assert question.rollouts.train_s == pytest.approx(0.5)


def test_updates_a_second_times_the_batch_is_the_rate_of_the_learner() -> None:
    question, _ = ask(Flags(actors=16, actor_rate=1000.0, update_rate=46.875, batch=256))
    assert question.loop.learner_rate == 12_000.0


def test_places_of_an_actor_multiply_rollouts_and_rate() -> None:
    question, _ = ask(Flags(actors=4, slots=8, rollout="exp:2", group=16, learner_rate=100.0))
    assert question.loop.actor_rate == pytest.approx(4.0)
    assert question.rollouts is not None
    assert (question.rollouts.num_slots, question.rollouts.train_s) == (32, pytest.approx(0.16))


def test_prices_are_typed_one_by_one() -> None:
    question, _ = ask(Flags(actors=1, actor_rate=1.0, learner_rate=1.0, learner_price=7.0))
    assert question.prices == Prices(learner_usd_per_h=7.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (Flags(), "How many actors"),
        (Flags(actors=4), "fast the learner"),
        (Flags(actors=4, learner_rate=1.0), "fast an actor"),
        (Flags(actors=4, actor_rate=1.0, learner_rate=1.0, update_rate=1.0), "give one of them"),
        (Flags(actors=4, actor_rate=1.0, learner_rate=1.0, actor_price=-1.0), "no number of dollars"),
    ],
)
def test_what_is_missing_or_typed_twice_is_named(flags: Flags, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ask(flags)
