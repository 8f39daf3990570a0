"""The fastest settings of TRL on this machine, by coordinate descent over what its documents offer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from tidegate.core.errors import UnavailableError


class TrlChoice(msgspec.Struct, frozen=True):
    """``micro_batch``: completions of one backward pass. ``paged``: transformers' continuous batching generates."""

    micro_batch: int = 64
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    attention: Literal["eager", "sdpa"] = "eager"
    compiled: bool = False
    paged: bool = False

    def __str__(self) -> str:
        """Such as ``micro-batch 8, bfloat16, sdpa``."""
        extras = [
            *(["torch.compile"] if self.compiled else []),
            *(["continuous batching"] if self.paged else []),
        ]
        return ", ".join([f"micro-batch {self.micro_batch}", self.dtype, self.attention, *extras])


# One after another, each beginning with the best so far.
STAGES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("micro_batch", (8, 16)),
    ("attention", ("sdpa",)),
    ("dtype", ("float32",)),
    ("compiled", (True,)),
    ("paged", (True,)),
)


class Tried(msgspec.Struct, frozen=True):
    """``seconds`` of an update; None where TRL did not run with it, and ``problem`` says why."""

    choice: TrlChoice
    seconds: float | None
    problem: str = ""


def search(measure: Callable[[TrlChoice], float]) -> Iterator[Tried]:
    """Every choice as it is tried; ``measure`` gives the seconds of an update.

    ``measure`` may raise ``UnavailableError``: then the choice counts as slower than all others.
    """
    best = _tried(measure, TrlChoice())
    yield best
    for name, values in STAGES:
        for choice in [msgspec.structs.replace(best.choice, **{name: value}) for value in values]:
            tried = _tried(measure, choice)
            yield tried
            best = fastest([best, tried])


def fastest(tried: Sequence[Tried]) -> Tried:
    """The one with the shortest update; the first where none ran."""
    return min(tried, key=lambda each: float("inf") if each.seconds is None else each.seconds)


def _tried(measure: Callable[[TrlChoice], float], choice: TrlChoice) -> Tried:
    try:
        return Tried(choice, measure(choice))
    except UnavailableError as error:
        return Tried(choice, None, str(error))
