"""TensorBoard: event files in a folder, by the writer of the package ``tensorboard``."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tidegate.core.errors import ConfigError

# Of files: a crash loses the numbers since.
FLUSH_S = 5


class TensorBoard:
    """See ``port.Tracker``."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of the event files; it is made.

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
        self._summary, self._event = protos.Summary, events.Event
        self._text_metadata, self._tensor = metadata.create_summary_metadata, tensors.make_tensor_proto
        try:
            self._writer = writer.EventFileWriter(str(folder), flush_secs=FLUSH_S)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written", why=str(error), fix="name another --to"
            ) from error

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

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _add(self, values: list[Any], *, step: int, at_s: float) -> None:
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=at_s, step=step, summary=summary))
