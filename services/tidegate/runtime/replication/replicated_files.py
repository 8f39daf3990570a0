"""What belongs to replicated rows and is not in the file of their tables."""

from typing import TYPE_CHECKING, Any, Protocol

from tidegate.runtime.replication.changes import ChangedRows

if TYPE_CHECKING:
    from psycopg import Connection


class ReplicatedFiles(Protocol):
    """Pushed with the rows, in the same transaction, and filled again with the file. One thread uses it."""

    def create(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """Make its tables new."""
        ...

    def push(self, db: "Connection[tuple[Any, ...]]", schema: str, changed: ChangedRows) -> None:
        """Rows were pushed."""
        ...

    def finish(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """All rows were pushed."""
        ...

    def fill(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """Write what there is into the folder of the service.

        Raises:
            OSError: the disk is full or does not answer.
        """
        ...


def sql(text: str) -> bytes:
    """A statement that is made of names of this program: the driver's types take no other texts than literal ones."""
    return text.encode()
