"""The sections of a run file that a running service takes over when the file changes (issue 18).

They are the staleness budget, the objectives, the scaling of actors and, in a cluster, the target;
``runtime.settings_loop`` looks for a change. A service reads them here at each use, or is told by ``on_change``;
everything else of the run file is fixed for the life of a process (``ServiceContext.settings``).
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidegate.core.admission import Limits
from tidegate.core.scaling import ScalingConfig
from tidegate.core.slo_catalogue import SlosConfig
from tidegate.core.staleness import StalenessLimits
from tidegate.runtime.config import Settings, StalenessConfig


class LiveSections(msgspec.Struct, frozen=True):
    """``staleness``, ``slos``, ``admission.scaling`` and ``until`` of the run file.

    The last two are None where nothing reads them. ``until``: empty on one machine, where `tidegate up` ends the run.
    """

    staleness: StalenessConfig = StalenessConfig()
    slos: SlosConfig = SlosConfig()
    scaling: ScalingConfig | None = None
    until: str | None = None

    def changed_from(self, before: "LiveSections") -> list[str]:
        """The names of the sections that differ."""
        return [
            name for name in LiveSections.__struct_fields__ if getattr(self, name) != getattr(before, name)
        ]


class SectionsSource(Protocol):
    """The file of the sections; ``launch.run_file_source`` is the real one."""

    def changed(self) -> bool:
        """Whether the file was replaced since the last call; cheap, never blocks for long."""
        ...

    def read(self) -> LiveSections:
        """The sections that the file has now.

        Raises:
            TidegateError: the file cannot be read, or a run could not start with it.
        """
        ...


class LiveSettings:
    """The sections in force in this process."""

    def __init__(self, sections: LiveSections, source: SectionsSource | None = None) -> None:
        """``source``: None where nothing changes while the process runs."""
        self.sections = sections
        self.source = source
        self._callbacks: list[Callable[[], None]] = []

    @property
    def staleness(self) -> StalenessConfig:
        """The staleness budget in force."""
        return self.sections.staleness

    def limits(self) -> StalenessLimits:
        """The same, as trajectories are judged by it."""
        return StalenessLimits(max_lag=self.staleness.max_lag, max_age_s=self.staleness.max_age_s)

    def follow_all(self, *, scaling: ScalingConfig, until: str) -> None:
        """Follow the scaling of actors and the target as well, from what they are at the start."""
        self.sections = msgspec.structs.replace(self.sections, scaling=scaling, until=until)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each change of the sections; it must not fail."""
        self._callbacks.append(callback)

    def take(self, sections: LiveSections) -> list[str]:
        """Put ``sections`` in force; returns the names of those that differ, and makes no callback when none does."""
        if self.sections.scaling is None:
            sections = msgspec.structs.replace(sections, scaling=None, until=None)
        changed = sections.changed_from(self.sections)
        if changed:
            self.sections = sections
            for callback in self._callbacks:
                callback()
        return changed


def run_file_limits(settings: Settings, staleness: StalenessConfig) -> Limits:
    """The run file's limits on admission with the staleness budget that is in force."""
    return limits_of(staleness, batch_size=settings.batch_size, max_running=settings.max_running)


def limits_of(staleness: StalenessConfig, *, batch_size: int, max_running: int) -> Limits:
    """The limits that these settings ask for; ``max_running`` 0 is what the budget needs (issue 19, "one dial")."""
    return Limits(
        max_lag=staleness.max_lag,
        batch_size=batch_size,
        max_running=max_running or (staleness.max_lag + 1) * batch_size,
        paced=staleness.pacing,
    )
