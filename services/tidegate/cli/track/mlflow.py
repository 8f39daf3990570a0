"""MLflow: a tracking server, or a SQLite file in a folder, by the client of the package ``mlflow-skinny``."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate.cli.track.flat import flat_settings
from tidegate.cli.track.place import PROJECT, TrackedPlace
from tidegate.cli.track.port import Ending
from tidegate.core.errors import ConfigError

# MLflow's own limits of one call and of one value.
METRICS_AT_ONCE, PARAMS_AT_ONCE, PARAM_CHARACTERS_MAX = 1000, 100, 500
# By these a run that is tracked again is found.
RUN_TAG = "tidegate.run"
# What a server that does not answer may take of one call, unless the environment says otherwise.
LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_NOT_IN_NAMES = re.compile(r"[^\w\-./ :]")

ItemT = TypeVar("ItemT")


class MLflow:
    """See ``port.Tracker``. A run of Tidegate is a run of the experiment ``tidegate``."""

    def __init__(self, place: TrackedPlace) -> None:
        """``place.to``: a folder, which gets ``mlflow.db`` and artifacts, or any tracking URI of MLflow.

        Raises:
            ConfigError: the package is missing.
        """
        for name, value in LIMITS.items():
            os.environ.setdefault(name, value)
        try:
            client: Any = import_module("mlflow.tracking.client").MlflowClient
            self._entities: Any = import_module("mlflow.entities")
            exceptions: Any = import_module("mlflow.exceptions")
            requests: Any = import_module("requests")
        except ImportError as error:
            raise ConfigError(
                "MLflow is not installed", why=str(error), fix="pip install 'tidegate[mlflow]'"
            ) from error
        self.errors: tuple[type[Exception], ...] = (
            exceptions.MlflowException,
            requests.RequestException,
            OSError,
        )
        self._place = place
        self._make_client: Any = client
        self._client: Any = None
        self._run = ""
        self._metrics: list[Any] = []

    def _opened(self) -> tuple[Any, str]:
        """The client, and MLflow's id of the run, which is made at the first call."""
        if self._run:
            return self._client, self._run
        artifacts = None
        uri = self._place.to
        if not self._place.is_service:
            folder = Path(self._place.to).resolve()
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = self._make_client(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(PROJECT)
        experiment_id = (
            self._client.create_experiment(PROJECT, artifact_location=artifacts)
            if experiment is None
            else experiment.experiment_id
        )
        tag = f"tags.`{RUN_TAG}` = '{self._place.run_id}'"
        found = self._client.search_runs([experiment_id], filter_string=tag, max_results=1)
        run = (
            found[0]
            if found
            else self._client.create_run(
                experiment_id, run_name=self._place.run_id, tags={RUN_TAG: self._place.run_id}
            )
        )
        self._run = run.info.run_id
        if found:
            self._client.update_run(self._run, status="RUNNING")
        return self._client, self._run

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        """Parameters of the run; long ones are cut."""
        client, run = self._opened()
        params = [
            self._entities.Param(allowed_name(path), text[:PARAM_CHARACTERS_MAX])
            for path, text in flat_settings(run_file)
        ]
        for some in _portions(params, PARAMS_AT_ONCE):
            client.log_batch(run, params=some)

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Metrics at the step; a character that MLflow refuses in names is an underscore.

        They are kept for calls of ``METRICS_AT_ONCE``, each of which is a transaction of the server.
        """
        if len(self._metrics) >= METRICS_AT_ONCE:
            self.flush()
        at_ms = int(at_s * 1000)
        self._metrics += [
            self._entities.Metric(allowed_name(name), value, at_ms, step) for name, value in values.items()
        ]

    def flush(self) -> None:
        """Send the metrics that are kept; after an error those that were not sent."""
        client, run = self._opened()
        while self._metrics:
            client.log_batch(run, metrics=self._metrics[:METRICS_AT_ONCE])
            del self._metrics[:METRICS_AT_ONCE]

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """A text file among the artifacts."""
        client, run = self._opened()
        client.log_text(run, text, f"{allowed_name(name).replace(' ', '_')}.txt")

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        """A JSON file of each step among the artifacts."""
        client, run = self._opened()
        client.log_text(
            run, msgspec.json.encode(list(rows)).decode(), f"{allowed_name(name)}/step-{step}.json"
        )

    def close(self, ending: Ending) -> None:
        """Set the status of the run: FINISHED, FAILED or KILLED."""
        client, run = self._opened()  # also where nothing was left to send
        self.flush()
        client.set_terminated(run, status=ending.upper())


def allowed_name(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return _NOT_IN_NAMES.sub("_", name)


def _portions(items: Sequence[ItemT], size: int) -> Iterator[list[ItemT]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
