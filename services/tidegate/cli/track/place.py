"""Where a tracker writes, and what names the run in it."""

from pathlib import Path

import msgspec

# Of the project or experiment that runs are in.
PROJECT = "tidegate"


class TrackedPlace(msgspec.Struct, frozen=True):
    """``run_id`` names the run, also when it is tracked again. ``folder``: of this run's own files.

    ``to``: what the user named, a folder that runs share or the address of a service.
    """

    run_id: str
    to: str
    folder: Path

    @property
    def is_service(self) -> bool:
        """Whether ``to`` is an address, and no folder."""
        return "://" in self.to
