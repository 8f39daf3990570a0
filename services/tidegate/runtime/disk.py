"""Whether the disk of a run can be written: services survive a full disk, and a run ends on a read-only one."""

import errno
import os
import tempfile
from pathlib import Path

# Below this the next checkpoint or version fails, whatever still succeeds.
FREE_BYTES_MIN = 4 << 20
FREE_FILES_MIN = 16


def disk_problem(folder: Path) -> str:
    """Why files below ``folder`` cannot be written, as ``problem: what to do``; empty while there is space."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"the disk cannot be read: {error.strerror} ({folder})"
    if is_read_only(folder):
        return (
            f"disk read-only: the file system of {folder} was mounted so, or turned so after an error; "
            "check and repair it, mount it for writing, and start the run again on the same folder"
        )
    free_bytes = found.f_bavail * found.f_frsize
    # Some file systems count no files.
    if free_bytes >= FREE_BYTES_MIN and (found.f_files == 0 or found.f_favail >= FREE_FILES_MIN):
        return ""
    what = f"{free_bytes / 1e6:.1f} MB" if free_bytes < FREE_BYTES_MIN else f"{found.f_favail} files"
    return f"disk full: {what} left at {folder}; free space, and the run goes on by itself"


def is_read_only(folder: Path) -> bool:
    """Whether nothing below ``folder`` can be written until its file system is mounted again.

    It opens a file without a name: ``statvfs`` does not tell when ext4 turned read-only after an error (Linux 6.18).
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.errno == errno.EROFS
    return False
