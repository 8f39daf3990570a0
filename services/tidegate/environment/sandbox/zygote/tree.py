"""The files that a program sees: an interpreter with its standard library, read-only, and nothing else.

Each is mounted at the path where it lies outside. Installed packages are hidden by an empty folder.
"""

import importlib.machinery
import os
import sys
from ctypes import CDLL

from tidegate.environment.sandbox.zygote import kernel

# In the run's tree, where programs expect a writable folder.
SCRATCH = "/tmp"
_DEVICES = ("/dev/null", "/dev/urandom")
_HIDDEN = ("site-packages", "dist-packages", "test", "ensurepip", "idlelib")
# A folder that every machine has; it is covered in this mount namespace only.
_BUILT_AT = "/tmp"


def standard_library() -> str:
    """The folder of the interpreter's own modules."""
    return os.path.dirname(os.path.realpath(os.__file__))


def _load_extensions(library: str) -> None:
    """Load the standard library's extension modules, so that the libraries they need are known."""
    folder = os.path.join(library, "lib-dynload")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        # Windows and test doubles apart; one whose library is not installed cannot be imported outside either.
        if name.endswith(suffix) and not name.startswith(("_tkinter", "_test", "_xx", "xx")):
            try:
                CDLL(os.path.join(folder, name))
            except OSError:
                continue


def sources() -> dict[str, str]:
    """What is shown: the path inside, and the real path outside.

    Runs in a forked process: loading every extension here would make the zygote permanently larger.
    """
    library = standard_library()
    _load_extensions(library)
    shown = {library: library, os.path.realpath(sys.executable): os.path.realpath(sys.executable)}
    for name in kernel.loaded_libraries():
        path = os.path.normpath(name)
        if not path.startswith(library + "/"):
            shown[path] = os.path.realpath(path)
    shown |= {device: device for device in _DEVICES}
    return shown


def enter(shown: dict[str, str]) -> None:
    """Make the tree and enter it. The process must have left the machine's mount namespace.

    Raises:
        OSError: the kernel refused a step; the error names it.
    """
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    # Held by descriptors, as a source may lie below the folder that the tree is built on.
    held = {path: os.open(real, os.O_PATH | os.O_CLOEXEC) for path, real in shown.items()}
    folders = {path for path, real in shown.items() if os.path.isdir(real)}
    kernel.mount("tmpfs", _BUILT_AT, kind="tmpfs", flags=kernel.MS_NOSUID, options="size=1m,mode=0755")
    for path, source_fd in held.items():
        place = _BUILT_AT + path
        os.makedirs(place if path in folders else os.path.dirname(place), mode=0o755, exist_ok=True)
        if path not in folders:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        kernel.mount(f"/proc/self/fd/{source_fd}", place, flags=kernel.MS_BIND)
        os.close(source_fd)
    library = _BUILT_AT + standard_library()
    for name in _HIDDEN:
        hidden = os.path.join(library, name)
        if os.path.isdir(hidden):
            kernel.mount("tmpfs", hidden, kind="tmpfs", options="size=4k,mode=0555")
    os.mkdir(_BUILT_AT + SCRATCH, 0o755)
    kernel.make_read_only(_BUILT_AT)
    kernel.pivot_into(_BUILT_AT)
