"""A run file as flat settings, and rows as a text, for trackers without a form for them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec


def flat_settings(document: Mapping[str, Any], *, under: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by its path, as ``staleness.max_lag``; lists and empty sections as JSON."""
    for key, value in document.items():
        path = f"{under}{key}"
        if isinstance(value, dict) and value:
            yield from flat_settings(cast("dict[str, Any]", value), under=f"{path}.")
        else:
            yield path, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def rows_as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows one after the other, a line for each column."""
    return "\n\n".join("\n".join(f"{name}: {value}" for name, value in row.items()) for row in rows)
