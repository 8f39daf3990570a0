"""The processor cores that a process takes at its start, so that all of its threads and children inherit them."""

import os
import sys

# Numbers, divided by commas; set by the supervisor.
CORES_VARIABLE = "TIDEGATE_CORES"


def use_own_cores() -> None:
    """Run on the cores that the environment names from here on; without any, do nothing. Linux only.

    Raises:
        OSError: none of them is usable any more.
    """
    numbers = os.environ.get(CORES_VARIABLE)
    if numbers and sys.platform.startswith("linux"):
        os.sched_setaffinity(0, map(int, numbers.split(",")))
