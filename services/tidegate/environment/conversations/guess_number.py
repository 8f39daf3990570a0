"""Guess the number: for ``guess 1 to 127:`` each turn is a number, answered ``higher`` or ``lower`` until it is right.

Halving the remaining range always finds it within the allowed turns, 1 to 10.
"""

import re
from collections.abc import Iterator, Sequence

from tidegate.core.errors import RecordError
from tidegate.environment.conversations.episodes import demonstrate, score_of_one_turn
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.conversations.tools import NO_TOOLS, Tools
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import repeated, split_of

LARGEST = (15, 31, 63, 127, 255, 511, 1000)
# Maximum reward for a near miss when the turns are used up.
NEAR_WEIGHT = 0.2
NOT_A_GUESS = "?"
_PROMPT = re.compile(r"guess 1 to ([0-9]{1,6}):")
_GUESS = re.compile(r"[0-9]{1,6}")


class GuessNumber:
    """The task. Its curriculum bin is the largest number: ``to-15`` to ``to-1000``."""

    @property
    def deterministic(self) -> bool:
        """True: the number belongs to the problem."""
        return True

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``: every number of every range."""
        return split_of(_all_problems(), split, seed=seed)

    def begin(self, problem: Problem, *, seed: int, tools: Tools) -> "GuessEpisode":
        """An episode about a problem.

        Raises:
            RecordError: the problem belongs to another task.
        """
        del seed, tools
        return GuessEpisode(problem)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for the number in the first turn."""
        return score_of_one_turn(self.begin(problem, seed=0, tools=NO_TOOLS), completion)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """Whole episodes about ``count`` training problems, halving the remaining range."""
        problems = repeated(self.problems("train", seed=seed), count=count)
        return [demonstrate(GuessEpisode(problem), halving_turns(problem)) for problem in problems]


class GuessEpisode:
    """The state of an episode: the turns left, and the last guess."""

    def __init__(self, problem: Problem) -> None:
        """Start without a guess.

        Raises:
            RecordError: the problem has no range or no number in it.
        """
        self._problem = problem
        self._largest = range_of(problem)
        self._secret = int(problem.answer)
        self._turns_left = turns_for(self._largest)
        self._nearness = 0.0

    @property
    def opening(self) -> str:
        """The range."""
        return self._problem.prompt

    def reply(self, text: str) -> ConversationTurn:
        """``higher``, ``lower``, ``?`` for text that is no number; or the verdict."""
        self._turns_left -= 1
        guess = int(text) if _GUESS.fullmatch(text) else None
        if guess == self._secret:
            return ConversationTurn("", score=Score(1.0, {"exact": 1.0, "nearness": 1.0}, "solved"))
        observation = NOT_A_GUESS
        if guess is not None:
            observation = "higher" if guess < self._secret else "lower"
            self._nearness = max(0.0, 1.0 - abs(guess - self._secret) / self._largest)
        if self._turns_left > 0:
            return ConversationTurn(observation)
        score = Score(
            reward=NEAR_WEIGHT * self._nearness,
            components={"exact": 0.0, "nearness": self._nearness},
            log=f"expected {self._secret}, got {text[:40]!r} last",
        )
        return ConversationTurn(observation, score=score, truncated=True)


def range_of(problem: Problem) -> int:
    """The largest number that may be the secret.

    Raises:
        RecordError: the prompt names none, or the answer is no number in the range.
    """
    prompt = _PROMPT.fullmatch(problem.prompt)
    if (
        prompt is None
        or not _GUESS.fullmatch(problem.answer)
        or not 1 <= int(problem.answer) <= int(prompt[1])
    ):
        raise RecordError(
            f"{problem.prompt[:80]!r} with the answer {problem.answer[:20]!r} is no problem of guess_number",
            fix='ask "guess 1 to 127:" with a number in the range as the answer',
        )
    return int(prompt[1])


def turns_for(largest: int) -> int:
    """Turns in which halving finds any number from 1 to ``largest``."""
    return largest.bit_length()


def halving_turns(problem: Problem) -> list[str]:
    """The guesses of a player that always halves the remaining range."""
    low, high, secret = 1, range_of(problem), int(problem.answer)
    guesses: list[int] = []
    while not guesses or guesses[-1] != secret:
        guesses.append((low + high) // 2)
        if guesses[-1] < secret:
            low = guesses[-1] + 1
        else:
            high = guesses[-1] - 1
    return [str(guess) for guess in guesses]


def _all_problems() -> Iterator[Problem]:
    for largest in LARGEST:
        for secret in range(1, largest + 1):
            yield Problem(f"{secret} of {largest}", f"guess 1 to {largest}:", str(secret), f"to-{largest}")
