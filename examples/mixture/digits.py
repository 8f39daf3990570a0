"""Two tasks about three digits, for a run of several environments: the last character of a prompt says which it is."""

from typing import Any

NUMBERS = [f"{number:03}" for number in range(0, 1000, 3)]
NEXT = str.maketrans("0123456789", "1234567890")


def share_of_right(completion: str, answer: str) -> float:
    """The share of characters at their place, and 0 for a text of another length."""
    if len(completion) != len(answer):
        return 0.0
    return sum(a == b for a, b in zip(completion, answer, strict=True)) / len(answer)


class Reverse:
    """Write them backwards: `312=` is answered `213`."""

    def problems(self) -> list[tuple[str, str]]:
        """Pairs of a prompt and its answer."""
        return [(f"{each}=", each[::-1]) for each in NUMBERS]

    def score(self, problem: Any, completion: str) -> float:
        """From 0 to 1."""
        return share_of_right(completion, problem.answer)


class Next:
    """Write the digit after each, and 0 after 9: `319+` is answered `420`."""

    def problems(self) -> list[tuple[str, str]]:
        """Pairs of a prompt and its answer."""
        return [(f"{each}+", each.translate(NEXT)) for each in NUMBERS]

    def score(self, problem: Any, completion: str) -> float:
        """From 0 to 1."""
        return share_of_right(completion, problem.answer)
