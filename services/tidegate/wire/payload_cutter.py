"""Cuts a policy's joined payload into its tensors as bytes arrive, and verifies the digest of each."""

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from tidegate.core.errors import CorruptionError, RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.wire.digest import Digest


class Listed(Protocol):
    """A tensor in a manifest: ``size`` bytes with ``digest``."""

    @property
    def name(self) -> str:
        """Name, unique in its manifest."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    @property
    def digest(self) -> bytes:
        """Digest of its bytes."""
        ...


ListedT = TypeVar("ListedT", bound=Listed)


class PayloadCutter(Generic[ListedT]):
    """``cut`` each chunk in the order of the payload, then ``finish``. Holds one hash and no bytes."""

    def __init__(self, tensors: Sequence[ListedT], *, version: PolicyVersion, fix: str) -> None:
        """``tensors`` in the order of the payload; ``fix``: what to do when one does not match its digest.

        Raises:
            CorruptionError: an empty tensor has the digest of something else.
        """
        self._tensors = tensors
        self._version = version
        self._fix = fix
        self._index = -1
        self._filled = 0
        self._hash = Digest()
        self._begin_tensor()

    def cut(self, chunk: bytes | memoryview) -> Iterator[tuple[ListedT, int, memoryview]]:
        """The parts of tensors in the next bytes: tensor, offset in it, and the part. Read it to its end.

        A part is hashed right before it is yielded, so that the caller's copy finds it in the processor's cache.
        The last part of a tensor comes only when the whole of it is verified.

        Raises:
            CorruptionError: a tensor does not match its digest.
            RecordError: more bytes came than the manifest lists.
        """
        rest = memoryview(chunk)
        while len(rest):
            if self._index == len(self._tensors):
                raise RecordError(f"Policy {self._version} came with more bytes than its manifest lists")
            tensor, offset = self._tensors[self._index], self._filled
            part = rest[: tensor.size - offset]
            rest = rest[len(part) :]
            self._hash.update(part)
            self._filled += len(part)
            if self._filled == tensor.size:
                self._check(tensor)
                self._begin_tensor()
            yield tensor, offset, part

    def finish(self) -> None:
        """Check that the payload is complete.

        Raises:
            RecordError: the payload ended early.
        """
        if self._index < len(self._tensors):
            name = self._tensors[self._index].name
            raise RecordError(f"Policy {self._version} ended inside of its tensor {name!r}")

    def _begin_tensor(self) -> None:
        """Move to the next tensor that has bytes."""
        while True:
            self._index += 1
            self._filled = 0
            self._hash = Digest()
            if self._index == len(self._tensors) or self._tensors[self._index].size > 0:
                return
            self._check(self._tensors[self._index])

    def _check(self, tensor: ListedT) -> None:
        if self._hash.digest() != tensor.digest:
            raise CorruptionError(
                f"Tensor {tensor.name!r} of policy {self._version} does not match its digest",
                why="its bytes changed on the way",
                fix=self._fix,
            )
