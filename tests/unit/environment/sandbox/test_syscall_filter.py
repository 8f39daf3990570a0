"""The filter, run by a machine of a few lines against every number and the arguments that matter."""

import errno

import pytest

from tidegate.environment.sandbox.zygote.syscall_filter import ARCHITECTURES, program
from tidegate.environment.sandbox.zygote.syscalls import ALLOWED

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCH_OF = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def refused(number: int) -> int:
    return 0x00050000 | number


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the kernel would decide: the classic BPF machine on one seccomp_data."""
    words = {0: number, 4: ARCH_OF[machine] if arch is None else arch}
    for index, value in enumerate([*arguments, *[0] * 6][:6]):
        words |= {16 + 8 * index: value & 0xFFFFFFFF, 20 + 8 * index: value >> 32}
    lines, accumulator, at = program(machine), 0, 0
    while True:
        code, if_true, if_false, k = lines[at]
        at += 1
        match code:
            case 0x20:
                accumulator = words[k]
            case 0x54:
                accumulator &= k
            case 0x15:
                at += if_true if accumulator == k else if_false
            case 0x35:
                at += if_true if accumulator >= k else if_false
            case 0x45:
                at += if_true if accumulator & k else if_false
            case 0x06:
                return k
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


# x86_64 and aarch64 numbers of what is decided by arguments: clone3, clone, mmap, ioctl, prctl, prlimit64, socketpair,
# rt_sigaction, fcntl, close_range
CONDITIONAL = {
    "x86_64": {435, 56, 9, 16, 157, 302, 53, 13, 72, 436},
    "aarch64": {435, 220, 222, 29, 167, 261, 199, 134, 25, 436},
}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_not_listed_is_refused_whatever_its_number(machine: str) -> None:
    column = ARCHITECTURES.index(machine)
    allowed = {numbers[column] for numbers in ALLOWED.values()}
    for number in range(1024):
        if number not in CONDITIONAL[machine]:
            assert verdict(machine, number) == (ALLOW if number in allowed else refused(errno.EPERM))


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_jump_stays_inside_of_the_program_and_the_program_inside_of_the_kernel_s_limit(
    machine: str,
) -> None:
    lines = program(machine)
    assert len(lines) <= 4096
    for at, (_, if_true, if_false, _) in enumerate(lines):
        assert at + 1 + max(if_true, if_false) < len(lines) or lines[at][0] == 0x06
        assert max(if_true, if_false) <= 255


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_other_architectures_and_the_second_set_of_numbers_end_the_program(machine: str) -> None:
    assert verdict(machine, 0, arch=0x40000003) == KILL
    assert verdict(machine, 0x40000000) == KILL
    assert verdict(machine, 0xFFFFFFFF) == KILL


@pytest.mark.parametrize(
    ("numbers", "arguments", "expected"),
    [
        ((435, 435), (0,), refused(errno.ENOSYS)),
        ((56, 220), (17,), ALLOW),
        ((56, 220), (0x3D0F00,), ALLOW),  # a thread of the C library
        ((56, 220), (0x10000000 | 17,), refused(errno.EPERM)),
        ((56, 220), (0x80,), refused(errno.EPERM)),
        ((56, 220), (0x3D0B00,), refused(errno.EPERM)),  # a thread with descriptors of its own
        ((436, 436), (3, 9, 4), ALLOW),  # CLOSE_RANGE_CLOEXEC
        ((436, 436), (3, 9, 2), refused(errno.EPERM)),
        ((72, 25), (3, 0), ALLOW),  # F_DUPFD
        ((72, 25), (3, 1030), ALLOW),  # F_DUPFD_CLOEXEC
        ((72, 25), (3, 5), ALLOW),  # F_GETLK
        ((72, 25), (3, 6), refused(0)),  # F_SETLK: granted, and locks nothing
        ((72, 25), (3, 7), refused(0)),  # F_SETLKW
        ((72, 25), (3, 37), refused(errno.EPERM)),  # F_OFD_SETLK
        ((72, 25), (3, 1031), refused(errno.EPERM)),  # F_SETPIPE_SZ
        ((72, 25), (3, 1024), refused(errno.EPERM)),  # F_SETLEASE
        ((9, 222), (0, 4096, 3, 0x22), ALLOW),  # private, anonymous
        ((9, 222), (0, 4096, 3, 0x01), ALLOW),  # a file, shared
        ((9, 222), (0, 4096, 3, 0x21), refused(errno.EPERM)),
        ((9, 222), (0, 4096, 3, 0x23), refused(errno.EPERM)),  # MAP_SHARED_VALIDATE
        ((9, 222), (0, 4096, 3, 0x40022), refused(errno.EPERM)),
        ((16, 29), (1, 0x5401), ALLOW),
        ((16, 29), (0, 0x5412), refused(errno.ENOTTY)),
        ((157, 167), (15,), ALLOW),
        ((157, 167), (22, 2), refused(errno.EPERM)),
        ((302, 261), (0, 7), ALLOW),
        ((302, 261), (1, 7), refused(errno.EPERM)),
        ((53, 199), (1, 1), ALLOW),
        ((53, 199), (2, 1), refused(errno.EPERM)),
        ((13, 134), (15, 0x7FFF00001000), ALLOW),
        ((13, 134), (17, 0), ALLOW),  # what SIGCHLD does now
        ((13, 134), (17, 0x1000), refused(errno.EPERM)),
        ((13, 134), (17, 0x7FFF00000000), refused(errno.EPERM)),  # the low word alone is 0
    ],
)
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_some_calls_are_decided_by_their_arguments(
    machine: str, numbers: tuple[int, int], arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(machine, numbers[ARCHITECTURES.index(machine)], *arguments) == expected


def test_calls_that_reach_out_of_a_sandbox_are_not_on_the_list() -> None:
    forbidden = {
        "socket", "connect", "bind", "accept", "sendmsg", "recvmsg", "unshare", "setns", "mount", "umount2", "chroot",
        "pivot_root", "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "perf_event_open", "userfaultfd",
        "io_uring_setup", "keyctl", "add_key", "request_key", "memfd_create", "shmget", "mq_open", "msgget", "semget",
        "open_by_handle_at", "name_to_handle_at", "kexec_load", "init_module", "setuid", "setgid", "setresuid",
        "capset", "seccomp", "personality", "pidfd_getfd", "pidfd_open", "mknod", "mknodat", "setxattr", "syslog",
        "sched_setscheduler", "setpriority", "vmsplice", "clone3", "reboot", "swapon", "clock_settime", "acct",
        "epoll_create", "epoll_create1", "sendfile", "splice", "tee", "setsockopt", "inotify_init1", "timer_create",
    }  # fmt: skip
    assert forbidden.isdisjoint(ALLOWED)
