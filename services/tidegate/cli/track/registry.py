"""The literal table of trackers."""

from collections.abc import Callable
from pathlib import Path

from tidegate.cli.track.port import Tracker
from tidegate.cli.track.tensorboard import TensorBoard

# Each opens a place below a folder.
TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard}
