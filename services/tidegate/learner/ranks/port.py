"""The interfaces between a trainer and its ranks."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
from torch import Tensor

from tidegate.learner.optim.port import Trainer


class Ranks(Protocol):
    """The ranks that train one policy. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This process' rank, from 0."""
        ...

    @property
    def count(self) -> int:
        """The number of ranks."""
        ...

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        """All-gather rows: (num_rows, ...) on every rank from each rank's (B, ...) at the positions ``rows_B``.

        Each row is computed by exactly one rank. Without a graph.

        Raises:
            RankLostError: a rank is lost.
        """
        ...

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in place; the same bits on all of them.

        Raises:
            RankLostError: a rank is lost.
        """
        ...

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over the ranks; a missing gradient counts as zero.

        Raises:
            RankLostError: a rank is lost.
        """
        ...


class Alone:
    """A single rank: no copies, no waiting."""

    rank = 0
    count = 1

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        """See ``Ranks``: the part is the whole."""
        del rows_B, num_rows
        return part.detach()

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """See ``Ranks``: nothing to add."""
        del tensors

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """See ``Ranks``: nothing to add."""
        del parameters


ALONE = Alone()


class Packed(msgspec.Struct, frozen=True, eq=False):
    """A prepared batch as named tensors and numbers, to be sent."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, float]


class SharedTrainer(Trainer, Protocol):
    """A trainer whose updates several ranks can compute together."""

    def pack(self, batch: Any) -> Packed:
        """The named tensors and numbers of a prepared batch."""
        ...

    def unpack(self, packed: Packed) -> Any:
        """The prepared batch of ``pack``."""
        ...

    def live(self) -> dict[str, Tensor]:
        """All state that an update changes, by name, not copied: equal on all ranks after each update."""
        ...
