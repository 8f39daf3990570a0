from tidegate.api.acting import Policy as Policy
from tidegate.api.runs import Run as Run
from tidegate.api.training import train as train
from tidegate.api.training import train_async as train_async
from tidegate.cli.callbacks.events import EndOfRun as EndOfRun
from tidegate.cli.callbacks.events import KeptCheckpoint as KeptCheckpoint
from tidegate.cli.callbacks.events import RunEvaluation as RunEvaluation
from tidegate.cli.callbacks.events import RunUpdate as RunUpdate
