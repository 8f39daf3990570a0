"""Trackio: its local database, by the package ``trackio``."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tidegate.cli.track.place import PROJECT, TrackedPlace
from tidegate.cli.track.port import Ending
from tidegate.core.errors import ConfigError


class Trackio:
    """See ``port.Tracker``. Values keep their time as the metric ``at_s``, because Trackio takes that of the call."""

    def __init__(self, place: TrackedPlace) -> None:
        """``place.to``: a folder, which becomes ``TRACKIO_DIR``, or the address of a Trackio server.

        Raises:
            ConfigError: the package is missing.
        """
        if not place.is_service:
            # Read when the package is loaded.
            os.environ["TRACKIO_DIR"] = str(Path(place.to).resolve())
        try:
            self._trackio: Any = import_module("trackio")
        except ImportError as error:
            raise ConfigError(
                "Trackio is not installed", why=str(error), fix="pip install 'tidegate[trackio]'"
            ) from error
        self.errors: tuple[type[Exception], ...] = (OSError, RuntimeError)
        self._place = place
        self._run: Any = None

    def _opened(self, config: Mapping[str, Any] | None = None) -> Any:
        if self._run is None:
            self._run = self._trackio.init(
                project=PROJECT,
                name=self._place.run_id,
                resume="allow",
                server_url=self._place.to if self._place.is_service else None,
                config=None if config is None else dict(config),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return self._run

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        """The configuration of the run."""
        self._opened(run_file)

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """One entry of the log."""
        self._opened().log({**values, "at_s": at_s}, step=step)

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """A text at the step."""
        self._opened().log({name: self._trackio.Markdown(f"```\n{text}\n```")}, step=step)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        """A table at the step."""
        self._opened().log(
            {name: self._trackio.Table(data=[list(row.values()) for row in rows], columns=list(rows[0]))},
            step=step,
        )

    def flush(self) -> None:
        """Nothing: the package writes by itself."""

    def close(self, ending: Ending) -> None:
        """Write what is left."""
        if self._run is not None:
            self._run.finish()
