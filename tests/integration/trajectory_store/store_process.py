"""The store in a separate process, to be killed: ``python -m ... SETTINGS.json``."""

import sys
from pathlib import Path

import msgspec

from tidegate.runtime.config import Settings
from tidegate.runtime.process import run_service
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.main import SPEC

if __name__ == "__main__":
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    sys.exit(run_service(SPEC, TrajectoryStoreConfig(), settings))
