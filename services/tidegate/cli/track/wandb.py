"""Weights & Biases: files in a folder for ``wandb sync``, or its service, by the package ``wandb``."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tidegate.cli.track.place import PROJECT, TrackedPlace
from tidegate.cli.track.port import Ending
from tidegate.core.errors import ConfigError


class WandB:
    """See ``port.Tracker``. Offline unless ``WANDB_MODE`` says otherwise; ``WANDB_PROJECT`` and the like are obeyed.

    Values are over the metric ``step``, because an evaluated version is older than the newest update.
    """

    def __init__(self, place: TrackedPlace) -> None:
        """``place.to``: a folder, which gets ``wandb/``, or the address of a server that hosts W&B.

        Raises:
            ConfigError: the package is missing.
        """
        if place.is_service:
            os.environ["WANDB_BASE_URL"] = place.to
        try:
            self._wandb: Any = import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                "W&B is not installed", why=str(error), fix="pip install 'tidegate[wandb]'"
            ) from error
        self.errors: tuple[type[Exception], ...] = (self._wandb.Error, OSError)
        self._place = place
        self._run: Any = None

    def _opened(self) -> Any:
        if self._run is None:
            wandb = self._wandb
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=self._place.run_id,
                name=self._place.run_id,
                resume="allow",
                dir=str(self._place.folder),
                mode=os.environ.get("WANDB_MODE", "online" if self._place.is_service else "offline"),
                # The figures are of another process: nothing of this one is of interest.
                settings=wandb.Settings(
                    console="off",
                    disable_git=True,
                    disable_code=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
            self._run.define_metric("*", step_metric="step")
        return self._run

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        """The configuration of the run."""
        self._opened().config.update(dict(run_file), allow_val_change=True)

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """One row of the history."""
        self._opened().log({**values, "step": step, "_timestamp": at_s})

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """An entry of the summary."""
        self._opened().summary[name] = text

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        """A table of each step."""
        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        table = self._wandb.Table(columns=columns, data=data)
        self._opened().log({name: table, "step": step, "_timestamp": at_s})

    def flush(self) -> None:
        """Nothing: the package sends by itself."""

    def close(self, ending: Ending) -> None:
        """Write or send what is left; W&B shows a run with an exit code as failed."""
        if self._run is not None:
            self._run.finish(exit_code=0 if ending == "finished" else 1)
            self._run = None
            self._wandb.teardown()
