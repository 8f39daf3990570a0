"""Numbers as block characters."""

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def resample(history: Sequence[tuple[float, float]], *, width: int) -> list[float]:
    """``width`` evenly spaced values over the time of ``history`` (time, value), each the last known one."""
    if not history or width <= 0:
        return []
    start_s, end_s = history[0][0], history[-1][0]
    columns: list[float] = []
    index = 0
    for column in range(width):
        at_s = start_s + (end_s - start_s) * (column + 1) / width
        while index + 1 < len(history) and history[index + 1][0] <= at_s:
            index += 1
        columns.append(history[index][1])
    return columns


def block_rows(values: Sequence[float], *, height: int, low: float, high: float) -> list[str]:
    """``height`` lines, top first, of one column a value; a value at or below ``low`` leaves the lowest line."""
    span = (high - low) or 1.0
    eighths = [round(max(0.0, min(1.0, (value - low) / span)) * height * 8) for value in values]
    return [
        "".join(BLOCKS[max(0, min(8, eighth - 8 * (height - 1 - row)))] for eighth in eighths)
        for row in range(height)
    ]


def bar(share: float, *, width: int) -> tuple[str, str]:
    """The filled and the empty part of a bar of ``width`` characters."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "━" * filled, "─" * (width - filled)
