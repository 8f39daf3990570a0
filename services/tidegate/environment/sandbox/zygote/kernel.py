"""The system calls that Python has no name for, each raising ``OSError`` with the call's name."""

import ctypes
import os
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522
# All seven bits of securebits(7) and their locks: no capability comes back with uid 0 or with an exec.
_SECUREBITS_ALL_LOCKED = 0xEF
_EINVAL = 22

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, name: str) -> int:
    """``result`` of the call ``name`` where it is not negative.

    Raises:
        OSError: it is; the error carries errno and the call's name.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def _long(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def syscall(name: str, number: int, *args: Any) -> int:
    """The system call ``number``; whole numbers are passed in full width."""
    return check(_libc.syscall(ctypes.c_long(number), *map(_long, args)), name)


def prctl(option: int, value: Any = 0, name: str = "prctl") -> None:
    """Set one property of this process."""
    check(_libc.prctl(option, _long(value), _long(0), _long(0), _long(0)), name)


def prctl_filter(mode: int, filter_program: Any) -> None:
    """Filter the system calls of this process."""
    check(_libc.prctl(PR_SET_SECCOMP, _long(mode), filter_program, _long(0), _long(0)), "prctl(SECCOMP)")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; a new pid namespace holds for the children made afterwards."""
    check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """Mount ``source`` on ``target``."""
    kind_bytes = kind.encode() if kind is not None else None
    result = _libc.mount(os.fsencode(source), os.fsencode(target), kind_bytes, _long(flags), options.encode())
    check(result, f"mount {target}")


def make_read_only(path: str) -> None:
    """Everything mounted at and below ``path``: no writing, no set-user-id. Other flags stay as they are."""

    class MountAttr(ctypes.Structure):
        _fields_ = [
            (field, ctypes.c_uint64) for field in ("attr_set", "attr_clr", "propagation", "userns_fd")
        ]

    attr = MountAttr(attr_set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    syscall(
        "mount_setattr",
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(path)),
        _AT_RECURSIVE,
        ctypes.byref(attr),
        ctypes.sizeof(attr),
    )


def pivot_into(path: str) -> None:
    """Make ``path`` (a mount point) the root of this mount namespace, and forget all that was mounted elsewhere."""
    os.chdir(path)
    here = ctypes.c_char_p(b".")
    # Both arguments alike stack the old root on the new one (pivot_root(2), NOTES), so no folder is kept for it.
    syscall("pivot_root", _SYS_PIVOT_ROOT[os.uname().machine], here, here)
    check(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def drop_capabilities() -> None:
    """Drop every capability permanently, including those that an exec could restore."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability, "prctl(CAPBSET_DROP)")
        except OSError as error:
            if error.errno != _EINVAL:  # the number after the last capability that this kernel knows
                raise
            break
    prctl(PR_SET_SECUREBITS, _SECUREBITS_ALL_LOCKED, "prctl(SECUREBITS)")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, "prctl(CAP_AMBIENT)")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def one_arena() -> None:
    """Keep all threads of this process and its children in one heap.

    Otherwise each thread of a program reserves 128 MiB of address space, which its memory limit is made of.
    """
    m_arena_max = -8
    _libc.mallopt(m_arena_max, 1)


def set_hostname(name: bytes) -> None:
    """What this uts namespace is called."""
    check(_libc.sethostname(name, len(name)), "sethostname")


def loaded_libraries() -> list[str]:
    """The shared libraries in this process, by the names they were found under."""

    class Info(ctypes.Structure):
        _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]

    names: list[str] = []

    def add(info: Any, _size: int, _data: Any) -> int:
        name = info.contents.name
        if name and name.startswith(b"/"):
            names.append(os.fsdecode(name))
        return 0

    visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    _libc.dl_iterate_phdr(visit(add), None)
    return names
