"""Disks that are full: files that behave so, and small file systems."""

import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

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


@contextmanager
def mounted_small_disk(place: Path, *, size_mb: int) -> Generator[Path]:
    """A file system of a few MB at ``place``; skips the test where none can be mounted."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted (this needs root): {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(ballast: Path) -> None:
    """Append to a file until its disk has no space left."""
    try:
        descriptor = os.open(ballast, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError:
        return
    try:
        while os.write(descriptor, b"\0" * 65536) == 65536:
            pass
    except OSError:
        return
    finally:
        os.close(descriptor)
