"""What a trainer asks of its fellow ranks, and what they ask of it."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
from torch import Tensor

from tidegate.learner.optim.port import Trainer


class Ranks(Protocol):
    """The ranks that train one policy, seen from one of them. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This one, from 0."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        """The rows that all ranks computed, on each of them: (num_rows, ...) from (B, ...) at the positions ``rows_B``.

        Each row is computed by exactly one rank. Without a graph.

        Raises:
            RankLostError: a rank is gone.
        """
        ...

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by the sum of all ranks'; a parameter that has none here counts as zero.

        Raises:
            RankLostError: a rank is gone.
        """
        ...


class Alone:
    """One rank that is all there are: nothing is copied, nothing is waited for."""

    rank = 0
    count = 1

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        """The part, which is everything."""
        del rows_B, num_rows
        return part.detach()

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """They are the sum already."""
        del parameters


ALONE = Alone()


class Packed(msgspec.Struct, frozen=True, eq=False):
    """A prepared batch taken apart, to be sent: tensors by name, and numbers."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, float]


class SharedTrainer(Trainer, Protocol):
    """A trainer whose updates several ranks can make together."""

    def pack(self, batch: Any) -> Packed:
        """Take a prepared batch apart."""
        ...

    def unpack(self, packed: Packed) -> Any:
        """What was packed."""
        ...

    def live(self) -> dict[str, Tensor]:
        """All that an update changes, by name, not copied: it must be the same on all ranks after each."""
        ...
