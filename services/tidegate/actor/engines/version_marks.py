"""Which policy version made which steps of a segment or tokens of a completion."""

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan


class VersionMarks:
    """Records which version acts from which position on; positions are steps of a segment or tokens of a completion."""

    __slots__ = ("_marks",)

    def __init__(self, version: PolicyVersion) -> None:
        """``version`` acts from position 0."""
        self._marks: list[tuple[int, PolicyVersion]] = [(0, version)]

    def swap(self, position: int, version: PolicyVersion) -> None:
        """``version`` acts from ``position`` on; positions come in order."""
        if position == self._marks[-1][0]:
            self._marks.pop()
        if not self._marks or self._marks[-1][1] != version:
            self._marks.append((position, version))

    def spans(self, length: int) -> tuple[VersionSpan, ...]:
        """The spans of a rollout that ended after ``length`` positions; later swaps do not apply."""
        stops = [start for start, _ in self._marks[1:]] + [length]
        return tuple(
            VersionSpan(version=version, start=start, stop=min(stop, length))
            for (start, version), stop in zip(self._marks, stops, strict=True)
            if start < length
        )
