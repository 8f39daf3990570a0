"""The filter of system calls (seccomp-bpf): what ``syscalls`` allows, some more by their arguments, nothing else."""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from tidegate.environment.sandbox.zygote import kernel
from tidegate.environment.sandbox.zygote.syscalls import ALLOWED

ARCHITECTURES = ("x86_64", "aarch64")
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# x86_64's kernel also answers the numbers of its 32-bit-pointer twin, from here on.
_X32_NUMBERS = 0x40000000

_RET_ALLOW, _RET_ERRNO, _RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD_WORD, _AND, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = (
    0x20,
    0x54,
    0x15,
    0x35,
    0x45,
    0x06,
)
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_MODE_FILTER = 2

_NEW_NAMESPACES = 0x7E020080
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_CLOSE_RANGE_UNSHARE = 2
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_AF_UNIX = 1
_SIGCHLD = 17
_PR_SET_NAME, _PR_GET_NAME = 15, 16
# Close-on-exec and back, non-blocking, bytes waiting; and the two by which a program learns that it has no terminal.
_IOCTLS = (0x5450, 0x5451, 0x5421, 0x541B, 0x5401, 0x5413)
# Duplicates, flags, a lock that is in the way, the size of a pipe. Not among them: making a pipe larger, leases, seals,
# and locks of an open file, without a bound on their number.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_GETLK, _F_SETLK, _F_SETLKW = range(8)
_F_DUPFD_CLOEXEC, _F_GETPIPE_SZ = 1030, 1032
_FCNTLS = (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_GETLK, _F_DUPFD_CLOEXEC, _F_GETPIPE_SZ)

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k


def _error(number: int) -> Instruction:
    return (_RETURN, 0, 0, _RET_ERRNO | number)


_ALLOW: Instruction = (_RETURN, 0, 0, _RET_ALLOW)
_REFUSE = _error(errno.EPERM)


def _argument(index: int) -> Instruction:
    """Load the low word of an argument; every argument checked here is 32 bits wide to the kernel as well."""
    return (_LOAD_WORD, 0, 0, _OFFSET_ARGS + 8 * index)


def _one_of(index: int, values: Sequence[int], otherwise: Instruction) -> list[Instruction]:
    """Allow the call when its argument is one of ``values``."""
    block = [_argument(index)]
    for value in values:
        block += [(_JUMP_EQUAL, 0, 1, value), _ALLOW]
    return [*block, otherwise]


def _conditional() -> list[tuple[tuple[int, int], list[Instruction]]]:
    """Calls that are allowed by their arguments: the numbers on both architectures, and the check."""
    shared_anonymous = _MAP_SHARED | _MAP_ANONYMOUS
    return [
        # clone3's flags lie in memory, where a filter cannot read: without it the C library takes clone.
        ((435, 435), [_error(errno.ENOSYS)]),
        # A thread has the descriptors of its process: the monitor counts those of one thread.
        (
            (56, 220),
            [
                _argument(0),
                (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
                _REFUSE,
                (_AND, 0, 0, _CLONE_THREAD | _CLONE_FILES),
                (_JUMP_EQUAL, 0, 1, _CLONE_THREAD),
                _REFUSE,
                _ALLOW,
            ],
        ),
        ((436, 436), [_argument(2), (_JUMP_ANY_BIT, 0, 1, _CLOSE_RANGE_UNSHARE), _REFUSE, _ALLOW]),
        # The kernel keeps a record of each locked range and limits their number nowhere, and SQLite does not open a
        # file without locks: they are granted, and lock nothing.
        (
            (72, 25),
            [
                _argument(1),
                (_JUMP_EQUAL, 1, 0, _F_SETLK),
                (_JUMP_EQUAL, 0, 1, _F_SETLKW),
                _error(0),
                *_one_of(1, _FCNTLS, _REFUSE),
            ],
        ),
        # Shared memory without a file belongs to no process's resident memory once it is unmapped, huge pages to none.
        (
            (9, 222),
            [
                _argument(3),
                (_JUMP_ANY_BIT, 0, 1, _MAP_HUGETLB),
                _REFUSE,
                (_AND, 0, 0, shared_anonymous),
                (_JUMP_EQUAL, 0, 1, shared_anonymous),
                _REFUSE,
                _ALLOW,
            ],
        ),
        ((16, 29), _one_of(1, _IOCTLS, _error(errno.ENOTTY))),
        ((157, 167), _one_of(0, (_PR_SET_NAME, _PR_GET_NAME), _REFUSE)),
        ((302, 261), _one_of(0, (0,), _REFUSE)),  # prlimit64: the caller's own limits
        ((53, 199), _one_of(0, (_AF_UNIX,), _REFUSE)),  # socketpair
        # When children of a process that ignores SIGCHLD end, the kernel adds their CPU time to no other process, and
        # the monitor would not see it. So rt_sigaction may read what SIGCHLD does (no new action, a 64-bit pointer),
        # and not change it.
        (
            (13, 134),
            [
                _argument(0),
                (_JUMP_EQUAL, 1, 0, _SIGCHLD),
                _ALLOW,
                _argument(1),
                (_JUMP_EQUAL, 1, 0, 0),
                _REFUSE,
                (_LOAD_WORD, 0, 0, _OFFSET_ARGS + 8 + 4),
                (_JUMP_EQUAL, 1, 0, 0),
                _REFUSE,
                _ALLOW,
            ],
        ),
    ]


def program(machine: str) -> list[Instruction]:
    """The filter for an architecture."""
    column = ARCHITECTURES.index(machine)
    kill: Instruction = (_RETURN, 0, 0, _RET_KILL_PROCESS)
    lines: list[Instruction] = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        kill,
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_NUMBERS),
        kill,
    ]
    for numbers, block in _conditional():
        lines += [(_JUMP_EQUAL, 0, len(block), numbers[column]), *block]
    for numbers in ALLOWED.values():
        number = numbers[column]
        if number is not None:
            lines += [(_JUMP_EQUAL, 0, 1, number), _ALLOW]
    return [*lines, _REFUSE]


def restrict() -> None:
    """From here on this process and its children make the allowed system calls only. ``no_new_privs`` is set."""
    lines = program(os.uname().machine)
    packed = b"".join(struct.pack("=HBBI", *line) for line in lines)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    filter_program = Program(len(lines), packed)
    kernel.prctl_filter(_MODE_FILTER, ctypes.byref(filter_program))
