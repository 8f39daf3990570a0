"""Files that others read while they are written, and locks of one holder."""

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# What a run writes holds prompts, answers and weights: for its user alone.
PRIVATE_UMASK = 0o077
# Less the umask, as for any new file.
MODE_DEFAULT = 0o666
# How often a file that may change is looked at. A kubelet takes a minute to write a changed Secret into a pod.
LOOK_PERIOD_S = 1.0
# What says of a file that its bytes are gone; another error, such as too few descriptors, passes.
LOST_ERRNOS = frozenset({errno.ENOENT, errno.EIO, errno.ESTALE, errno.EISDIR})


def replace_file(path: Path, data: bytes, *, mode: int = MODE_DEFAULT, durable: bool = False) -> None:
    """Write ``data`` to ``path`` as ``replacing`` does.

    Raises:
        OSError: the disk refused; the previous file stays.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, mode: int = MODE_DEFAULT, durable: bool = False) -> Generator[BinaryIO]:
    """A file to write, which becomes ``path`` at the end of the block: a reader sees the previous file or the new one.

    A block that raises leaves the previous file. ``mode``: its permissions, less the umask. One writer for each path:
    the unfinished file has one name beside it.
    ``durable``: it returns once the content survives a crash of the machine, which otherwise may lose both contents.

    Raises:
        OSError: the disk refused; the previous file stays.
    """
    unfinished = path.with_name(f"{path.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a crash of the machine.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def change_mark(path: Path) -> tuple[int, int]:
    """Differs after the file was replaced; follows the link that a kubelet exchanges.

    Raises:
        OSError: there is no such file, or it cannot be looked at.
    """
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ino


def lock_file(path: Path) -> int | None:
    """Lock ``path``, which is created if need be; None where another process holds the lock.

    The descriptor holds it until it is closed or its process ends for any reason.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
