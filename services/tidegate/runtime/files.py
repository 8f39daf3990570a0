"""Files that others read while they are written."""

import os
from pathlib import Path

# Less the umask, as for any new file.
MODE_DEFAULT = 0o666


def replace_file(path: Path, data: bytes, *, mode: int = MODE_DEFAULT) -> None:
    """Write ``path`` whole or not at all: a reader sees the previous file or the new one.

    ``mode``: its permissions, less the umask. One writer for each path: the unfinished file has one name beside it. A
    crash of the machine may lose both contents; the caller syncs what must survive one.

    Raises:
        OSError: the disk refused; the previous file stays.
    """
    unfinished = path.with_name(f"{path.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    unfinished.replace(path)
