from tidegate.api.acting import Policy as Policy
from tidegate.api.runs import Run as Run
from tidegate.api.training import train as train
from tidegate.api.training import train_async as train_async
