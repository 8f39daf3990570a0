"""The literal table of trackers."""

from collections.abc import Callable

from tidegate.cli.track.mlflow import MLflow
from tidegate.cli.track.place import TrackedPlace
from tidegate.cli.track.port import Tracker
from tidegate.cli.track.tensorboard import TensorBoard
from tidegate.cli.track.trackio import Trackio
from tidegate.cli.track.wandb import WandB

# Each opens a place; its package is loaded then.
TRACKERS: dict[str, Callable[[TrackedPlace], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
    "trackio": Trackio,
}
