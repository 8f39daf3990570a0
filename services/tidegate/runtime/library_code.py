"""Tells the code of Python and of installed packages from that of a project, by its file."""

import os
import sysconfig

_PLACES = ("<frozen", *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")))
# A project's own folder may have installed packages below it, of another Python as well.
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def is_library(file: str) -> bool:
    """Whether the file of a code object belongs to Python or to an installed package."""
    return file.startswith(_PLACES) or _INSTALLED in file
