"""Guess the number: higher, lower, and halving that always finds it."""

import pytest

from tidegate.core.errors import RecordError
from tidegate.environment.conversations.guess_number import GuessEpisode, halving_turns, turns_for
from tidegate.environment.tasks.port import Problem


def problem(secret: int, largest: int) -> Problem:
    return Problem("p", f"guess 1 to {largest}:", str(secret), "all")


@pytest.mark.parametrize("largest", [1, 2, 15, 31, 100, 127])
def test_halving_finds_every_number_in_the_turns_there_are(largest: int) -> None:
    for secret in range(1, largest + 1):
        guesses = halving_turns(problem(secret, largest))
        assert 1 <= len(guesses) <= turns_for(largest)
        assert guesses[-1] == str(secret)


def test_replies_say_where_the_number_lies() -> None:
    game = GuessEpisode(problem(9, 15))
    assert [game.reply(text).observation for text in ("8", "12", "no")] == ["higher", "lower", "?"]
    end = game.reply("9")
    assert end.score is not None
    assert (end.score.reward, end.truncated) == (1.0, False)


def test_used_up_turns_are_worth_how_near_the_last_guess_was() -> None:
    game = GuessEpisode(problem(9, 15))
    turns = [game.reply("12") for _ in range(4)]
    assert [turn.done for turn in turns] == [False, False, False, True]
    assert turns[-1].truncated
    assert turns[-1].score is not None
    assert turns[-1].score.reward == pytest.approx(0.2 * (1 - 3 / 15))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("guess 1 to 15:", "16"),
        ("guess 1 to 15:", "0"),
        ("guess 1 to 15:", "x"),
        ("guess:", "3"),
        ("guess 1 to 15:", ""),
    ],
)
def test_problem_that_is_none_is_refused(prompt: str, answer: str) -> None:
    with pytest.raises(RecordError, match="no problem of guess_number"):
        GuessEpisode(Problem("p", prompt, answer, "all"))
