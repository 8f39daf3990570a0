"""Distributions of durations as options take them: the grammar of ``core.distributions``, and files of measurements."""

from pathlib import Path

import msgspec

from tidegate.core.distributions import (
    FORMS_WITH_FILES,
    Durations,
    Histogram,
    check_histogram,
    histogram_file,
    histogram_of,
    parse_distribution,
)
from tidegate.core.errors import ConfigError

FILE_FIX = 'give one number of seconds a line, or {"edges_s": [...], "counts": [...]}'
# Maximum number of lines: enough for the tail of a distribution, and a bound for files of another kind.
SAMPLES_MAX = 100_000


def read_durations(text: str, *, option: str) -> Durations:
    """The distribution that an option names; ``hist:FILE`` is read from its file.

    Raises:
        ConfigError: the text is no distribution, or the file holds no durations; the message names the option.
    """
    path = histogram_file(text)
    try:
        return parse_distribution(text) if path is None else read_histogram(Path(path))
    except ConfigError as error:
        fix = f"write {FORMS_WITH_FILES}" if path is None else error.fix
        raise ConfigError(f"{option}: {error.what}", why=error.why, fix=fix) from error


def read_histogram(path: Path) -> Histogram:
    """Measured durations: one number of seconds a line, or a JSON object with ``edges_s`` and ``counts``.

    Raises:
        ConfigError: the file cannot be read, or holds neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read", why=why, fix=FILE_FIX) from error
    if not text.lstrip().startswith(("{", "[")):
        return histogram_of(_numbers(text, path))
    try:
        return check_histogram(msgspec.json.decode(text, type=Histogram))
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no histogram", why=str(error), fix=FILE_FIX) from error


def _numbers(text: str, path: Path) -> list[float]:
    numbers: list[float] = []
    for line in filter(None, map(str.strip, text.splitlines()[:SAMPLES_MAX])):
        try:
            numbers.append(float(line))
        except ValueError as error:
            raise ConfigError(f"{path} holds {line[:40]!r}, which is no number", fix=FILE_FIX) from error
    return numbers
