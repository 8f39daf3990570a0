"""TensorBoard: event files in a folder, by the writer of the package ``tensorboard``."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import yaml

from tidegate.cli.track.flat import rows_as_text
from tidegate.cli.track.place import TrackedPlace
from tidegate.cli.track.port import Ending
from tidegate.core.errors import ConfigError

# Of files: a crash loses the numbers since.
FLUSH_S = 5


class TensorBoard:
    """See ``port.Tracker``."""

    def __init__(self, place: TrackedPlace) -> None:
        """``place.folder``: of the event files.

        Raises:
            ConfigError: the package is missing, or the folder cannot be written.
        """
        try:
            writer: Any = import_module("tensorboard.summary.writer.event_file_writer")
            protos: Any = import_module("tensorboard.compat.proto.summary_pb2")
            events: Any = import_module("tensorboard.compat.proto.event_pb2")
            metadata: Any = import_module("tensorboard.plugins.text.metadata")
            tensors: Any = import_module("tensorboard.util.tensor_util")
        except ImportError as error:
            raise ConfigError(
                "TensorBoard is not installed", why=str(error), fix="pip install 'tidegate[tensorboard]'"
            ) from error
        self.errors: tuple[type[Exception], ...] = (OSError,)
        self._summary, self._event = protos.Summary, events.Event
        self._text_metadata, self._tensor = metadata.create_summary_metadata, tensors.make_tensor_proto
        try:
            self._writer = writer.EventFileWriter(str(place.folder), flush_secs=FLUSH_S)
        except OSError as error:
            raise ConfigError(
                f"{place.folder} cannot be written", why=str(error), fix="name another --to"
            ) from error

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        """A text."""
        text = yaml.safe_dump(dict(run_file), sort_keys=False, allow_unicode=True)
        self.text("run file", text, step=0, at_s=at_s)

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """One scalar each."""
        values_of = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(values_of, step=step, at_s=at_s)

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """Shown by the text plugin, as it is."""
        value = self._summary.Value(
            tag=name,
            metadata=self._text_metadata(display_name=name, description=""),
            tensor=self._tensor([f"```\n{text}\n```"], dtype=None),
        )
        self._add([value], step=step, at_s=at_s)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        """A text of each step."""
        self.text(name, rows_as_text(rows), step=step, at_s=at_s)

    def flush(self) -> None:
        """Nothing: the writer flushes its file by itself, every few seconds."""

    def close(self, ending: Ending) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _add(self, values: list[Any], *, step: int, at_s: float) -> None:
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=at_s, step=step, summary=summary))
