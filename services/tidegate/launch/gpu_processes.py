"""The processes of a run folder that compute on a GPU, by what they logged when they chose their device."""

import re
from pathlib import Path

# A process chooses its device in its first seconds.
HEAD_BYTES = 256 << 10
_ON_GPU = re.compile(rb'(?=[^\n]*"event": ?"device_chosen")[^\n]*"device": ?"cuda')


def count_gpu_processes(folder: Path) -> int:
    """How many logs of the folder say so; a log that was cut since counts as none."""
    count = 0
    for log in (folder / "logs").glob("*.log"):
        with log.open("rb") as file:
            count += _ON_GPU.search(file.read(HEAD_BYTES)) is not None
    return count
