"""Tasks as a user writes them, for the tests: one turn, several turns, and mistakes."""

import os
import time
from pathlib import Path
from typing import Any


def score(prompt: str, completion: str, answer: str) -> float:
    """Share of the answer's letters."""
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / len(answer)


class Reverse:
    """Words backwards."""

    def problems(self) -> list[tuple[str, str]]:
        return [(f"{word}=", word[::-1]) for word in (f"{number:03}" for number in range(50))]

    def score(self, problem: Any, completion: str) -> bool:
        return completion == problem.answer


class Guess:
    """The answer after any number of questions; some texts are mistakes."""

    def problems(self) -> list[dict[str, str]]:
        return [{"prompt": f"{number}?", "answer": str(number), "bin": "low"} for number in range(50)]

    def begin(self, problem: Any, seed: int) -> "Game":
        return Game(problem, seed)

    def solution(self, problem: Any) -> list[str]:
        return ["ask", problem.answer]


class Game:
    def __init__(self, problem: Any, seed: int) -> None:
        self.opening = problem.prompt
        self.answer = problem.answer
        self.seed = seed
        self.turns = 0

    def reply(self, text: str) -> str | float | None:
        self.turns += 1
        match text:
            case "ask":
                return f"turn {self.turns} of {self.answer}, seed {self.seed}"
            case "raise":
                raise KeyError(text)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(60)
            case "none":
                return None
            case _:
                return float(text == self.answer)


class Unloadable:
    def __init__(self) -> None:
        self.words = Path("no_such_file.txt").read_text(encoding="utf-8")

    def score(self, problem: Any, completion: str) -> float:
        return 1.0


class Few:
    def problems(self) -> list[tuple[str, str]]:
        return [("a", "b")]

    def score(self, problem: Any, completion: str) -> float:
        return 1.0


class Endless:
    def problems(self) -> list[tuple[str, str]]:
        time.sleep(60)
        return []

    def score(self, problem: Any, completion: str) -> float:
        return 1.0


class Exits(Endless):
    def problems(self) -> list[tuple[str, str]]:
        os._exit(4)
