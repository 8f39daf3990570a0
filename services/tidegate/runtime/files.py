"""Files that others read while they are written."""

import os
from pathlib import Path

# What the umask leaves of it, as of any new file.
MODE_DEFAULT = 0o666


def replace_file(path: Path, data: bytes, *, mode: int = MODE_DEFAULT) -> None:
    """Write ``path`` whole or not at all: whoever reads it sees the file before or the one after.

    ``mode``: its permissions, less the umask. One writer a path: what is unfinished lies beside it under one name. A
    crash of the machine may lose both contents; what must outlive one is synced by its owner.

    Raises:
        OSError: the disk refused; what was there stays.
    """
    unfinished = path.with_name(f"{path.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    unfinished.replace(path)
