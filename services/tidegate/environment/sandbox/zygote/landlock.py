"""The second protection of files: Landlock, where the kernel has it (landlock(7)).

In the mount namespace only scratch is writable already; Landlock enforces the same by other means, and also forbids
TCP, abstract unix sockets of others and signals to others where the kernel's version knows how.
"""

import ctypes
import os

from tidegate.environment.sandbox.zygote import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_MAKE_DEVICES = (1 << 6) | (1 << 11)  # character and block devices
_NET_TCP = 0b11
_SCOPED = 0b11  # abstract unix sockets, signals


def _files_handled(abi: int) -> int:
    """All kinds of access to files that this version can forbid."""
    known = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, ioctl on devices
        if abi >= since:
            known |= 1 << bit
    return known


class _Ruleset(ctypes.Structure):
    _fields_ = [(field, ctypes.c_uint64) for field in ("files", "net", "scoped")]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def version() -> int:
    """Which Landlock this kernel has; 0 for none."""
    try:
        return kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(*, abi: int, scratch: str) -> None:
    """From here on this process reads what it sees and writes below ``scratch``, no more. ``no_new_privs`` is set."""
    files = _files_handled(abi)
    rules = _Ruleset(files=files, net=_NET_TCP if abi >= 4 else 0, scoped=_SCOPED if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset_fd = kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, ctypes.byref(rules), size, 0)
    read_only = _EXECUTE | _READ_FILE | _READ_DIR
    writable_device = _READ_FILE | 1 << 1
    for path, allowed in (
        ("/", read_only),
        (scratch, files & ~_MAKE_DEVICES),
        ("/dev/null", writable_device),
    ):
        folder_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = _PathBeneath(allowed=allowed & files, parent_fd=folder_fd)
        kernel.syscall(
            "landlock_add_rule", _ADD_RULE, ruleset_fd, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0
        )
        os.close(folder_fd)
    kernel.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset_fd, 0)
    os.close(ruleset_fd)
