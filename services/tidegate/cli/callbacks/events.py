"""What a callback is told: one record for each thing that happened, the same in a run file and in a Python program."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec

from tidegate.cli.step_tail import curves_of
from tidegate.core.ids import LineageName, PolicyVersion


class RunUpdate(Mapping[str, Any]):
    """An update of the learner, which made a version. A mapping of what ``learner/steps.jsonl`` says of it."""

    method: ClassVar[str] = "on_update"

    def __init__(self, line: dict[str, Any]) -> None:
        """``line``: of the step log."""
        self._line = line

    @property
    def step(self) -> int:
        """Updates of the run, with this one."""
        return int(self._line["step"])

    @property
    def version(self) -> str:
        """The version that it made, such as ``0-3fa2@40``."""
        return str(PolicyVersion(LineageName(self._line["lineage"]), self.step))

    @property
    def at_s(self) -> float:
        """Seconds since the epoch."""
        return float(self._line["at_s"])

    @property
    def numbers(self) -> dict[str, float]:
        """Its numbers by name, those of ``metrics`` among them: loss, mean_reward or mean_return, lag_mean, ..."""
        return curves_of(self._line)

    def __getitem__(self, name: str) -> Any:
        """A field of the line, such as ``update["loss"]``."""
        return self._line[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the fields."""
        return iter(self._line)

    def __len__(self) -> int:
        """How many fields there are."""
        return len(self._line)

    def __repr__(self) -> str:
        """The step and the version."""
        return f"RunUpdate(step={self.step}, version={self.version!r})"


class RunEvaluation(msgspec.Struct, frozen=True):
    """A version was evaluated. ``numbers``: such as solved_share, or mean_return. ``at_s``: seconds since the epoch."""

    method: ClassVar[str] = "on_evaluation"

    version: str
    step: int
    at_s: float
    numbers: dict[str, float]


class KeptCheckpoint(msgspec.Struct, frozen=True):
    """The learner wrote a checkpoint, from which a run can be resumed or forked; the oldest one is removed later."""

    method: ClassVar[str] = "on_checkpoint"

    version: str
    step: int
    at_s: float
    folder: Path


class EndOfRun(msgspec.Struct, frozen=True):
    """The run is over. ``summary``: as ``summary.json`` has it; None where it was killed before it wrote one.

    ``ended_by``: ``target``, ``interrupted``, ``time``, ``failed``, ...; empty without a summary.
    """

    method: ClassVar[str] = "on_end"

    ended_by: str
    succeeded: bool
    at_s: float
    summary: dict[str, Any] | None


RunEvent: TypeAlias = RunUpdate | RunEvaluation | KeptCheckpoint | EndOfRun
METHODS = tuple(kind.method for kind in (RunUpdate, RunEvaluation, KeptCheckpoint, EndOfRun))
