"""Held-out problems, and demonstrations from the others; shared by all tasks.

A fifth is held out, chosen by digest: the same in every process, run and order.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tidegate.environment.tasks.port import Demonstration, Problem, Split

T = TypeVar("T")
HELDOUT_SHARE = 0.2
_DIGEST_BYTES = 8


def is_held_out(prompt_id: str) -> bool:
    """Whether no task and no demonstration may ever use a problem."""
    digest = hashlib.sha256(prompt_id.encode()).digest()[:_DIGEST_BYTES]
    return int.from_bytes(digest, "big") < HELDOUT_SHARE * 2 ** (8 * _DIGEST_BYTES)


def split_of(problems: Iterable[Problem], split: Split, *, seed: int) -> Sequence[Problem]:
    """The problems of a split, each id once, shuffled by ``seed``."""
    chosen = list(
        {
            problem.prompt_id: problem
            for problem in problems
            if is_held_out(problem.prompt_id) == (split == "heldout")
        }.values()
    )
    random.Random(seed).shuffle(chosen)
    return chosen


def right_answers(problems: Sequence[Problem], *, count: int) -> list[Demonstration]:
    """``count`` demonstrations that give the problem's own answer."""
    return [
        Demonstration(prompt=problem.prompt, completion=problem.answer)
        for problem in repeated(problems, count=count)
    ]


def repeated(items: Sequence[T], *, count: int) -> list[T]:
    """``count`` problems or demonstrations, all different until every one was used."""
    return [items[index % len(items)] for index in range(count)]
