"""Texts of SQLite in PostgreSQL, which has no NUL in them: a detail of a verifier may, and must stop no replica.

``ESCAPE`` and a mark stand for NUL, and for ``ESCAPE`` itself.
"""

from collections.abc import Sequence

# Of Unicode's private use, so that hardly a text has it.
ESCAPE = "\ue000"
_NUL, _ESCAPE = f"{ESCAPE}0", f"{ESCAPE}1"


def to_postgres(column: Sequence[str | None]) -> list[str | None]:
    """The texts as PostgreSQL takes them."""
    return [
        text
        if text is None or ("\0" not in text and ESCAPE not in text)
        else text.replace(ESCAPE, _ESCAPE).replace("\0", _NUL)
        for text in column
    ]


def from_postgres(text: str) -> str:
    """What ``to_postgres`` was given."""
    return text.replace(_NUL, "\0").replace(_ESCAPE, ESCAPE) if ESCAPE in text else text
