"""Whether the disk of a run has space. Services survive a full disk; this is for those who must say so."""

import os
from pathlib import Path

# Below this the next checkpoint or version fails, whatever still succeeds.
FREE_BYTES_MIN = 4 << 20
FREE_FILES_MIN = 16


def disk_problem(folder: Path) -> str:
    """Why files below ``folder`` cannot be written, as a sentence; empty while there is space."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"the disk cannot be read: {error.strerror} ({folder})"
    free_bytes = found.f_bavail * found.f_frsize
    # Some file systems count no files.
    if free_bytes >= FREE_BYTES_MIN and (found.f_files == 0 or found.f_favail >= FREE_FILES_MIN):
        return ""
    what = f"{free_bytes / 1e6:.1f} MB" if free_bytes < FREE_BYTES_MIN else f"{found.f_favail} files"
    return f"disk full: {what} left at {folder}; free space, and the run goes on by itself"
