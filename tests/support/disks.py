"""Files of a disk that is full, without one."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# Every write to it fails with ENOSPC.
FULL = Path("/dev/full")


@contextmanager
def file_size_limited(bytes_max: int) -> Generator[None]:
    """This process writes no file beyond a size: a write that crosses it is cut, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
