"""Fewer points of a curve that has more than a drawing can show."""

from collections.abc import Sequence


def thin(points: Sequence[tuple[float, float]], *, most: int) -> list[tuple[float, float]]:
    """At most ``most`` points: the smallest and the largest of each section, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    stretch = -(-2 * len(points) // most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept.extend(sorted(ends))
    return kept
