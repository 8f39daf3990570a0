"""The memory of a run, from a /proc of files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.environment.sandbox.zygote.usage import Meter

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SOCKET_BYTES = 1000
PER_THREAD, PER_DESCRIPTOR = 1 << 16, 17 * PAGE_BYTES


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "self/net/sockstat", "sockets: used 0\nTCP: inuse 7 orphan 0 tw 0 alloc 9 mem 0\n")
    write(tmp_path / "sys/vm/max_map_count", "100\n")
    return tmp_path


@pytest.fixture
def proc_fd(proc: Path) -> Iterator[int]:
    proc_fd = os.open(proc, os.O_RDONLY | os.O_DIRECTORY)
    yield proc_fd
    os.close(proc_fd)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_process(
    proc: Path,
    pid: int,
    *,
    status: dict[int, str],
    name: str = "python",
    children: str = "",
    num_descriptors: int = 0,
) -> None:
    """A process with the threads of ``status``."""
    write(proc / f"{pid}/stat", f"{pid} ({name}) S {'0 ' * 10}5 6 7 8 {'0 ' * 30}")
    for thread, text in status.items():
        write(proc / f"{pid}/task/{thread}/status", f"Name:\t{name}\nState:\tS\n{text}Threads:\t1\n")
        write(proc / f"{pid}/task/{thread}/children", children)
        for descriptor in range(num_descriptors):
            write(proc / f"{pid}/task/{thread}/fd/{descriptor}", "")


def vm(*, size: int = 0, resident: int = 0, tables: int = 0, swap: int = 0) -> str:
    """The lines of memory, in KiB."""
    return f"VmPeak:\t9999 kB\nVmSize:\t{size} kB\nVmRSS:\t{resident} kB\nVmPTE:\t{tables} kB\nVmSwap:\t{swap} kB\n"


def memory_bytes(proc_fd: int) -> int:
    return Meter(proc_fd, socket_bytes=SOCKET_BYTES).of_tree(1)[1]


def test_resident_tables_swap_and_descriptors_of_all_processes_are_added(proc: Path, proc_fd: int) -> None:
    add_process(proc, 1, status={1: vm(resident=100, tables=20, swap=3)}, children="2 3 ", num_descriptors=5)
    add_process(proc, 2, status={2: vm(resident=1000)})
    add_process(proc, 3, status={})  # ended meanwhile
    cpu_s, total_bytes = Meter(proc_fd, socket_bytes=SOCKET_BYTES).of_tree(1)
    assert total_bytes == (1123 << 10) + 2 * PER_THREAD + 5 * PER_DESCRIPTOR
    assert cpu_s == pytest.approx(3 * 26 / os.sysconf("SC_CLK_TCK"))


def test_memory_of_threads_counts_once_and_without_the_first_as_well(proc: Path, proc_fd: int) -> None:
    add_process(proc, 1, status={1: "", 11: vm(resident=500), 12: vm(resident=500)}, num_descriptors=2)
    assert memory_bytes(proc_fd) == (500 << 10) + 3 * PER_THREAD + 2 * PER_DESCRIPTOR


def test_every_socket_of_the_namespace_counts_with_a_full_buffer_and_a_message(
    proc: Path, proc_fd: int
) -> None:
    write(proc / "self/net/sockstat", "sockets: used 9\n")
    assert memory_bytes(proc_fd) == 9 * 2 * SOCKET_BYTES


def test_mappings_count_by_the_address_space_up_to_the_kernel_s_number_of_them(
    proc: Path, proc_fd: int
) -> None:
    add_process(proc, 1, status={1: vm(size=160)})
    assert memory_bytes(proc_fd) - PER_THREAD == 10 << 10
    add_process(proc, 1, status={1: vm(size=1 << 20)})
    assert memory_bytes(proc_fd) - PER_THREAD == 100 * PAGE_BYTES // 16
    (proc / "sys/vm/max_map_count").unlink()
    assert memory_bytes(proc_fd) - PER_THREAD == 1 << 26


@pytest.mark.parametrize("name", ["\x1eVmRSS:\t0 kB", "\x85VmRSS: 0 kB", ") S 0", "Vm"])
def test_name_of_a_process_changes_nothing(proc: Path, proc_fd: int, name: str) -> None:
    add_process(proc, 1, status={1: vm(resident=500)}, name=name)
    cpu_s, total_bytes = Meter(proc_fd, socket_bytes=SOCKET_BYTES).of_tree(1)
    assert total_bytes == (500 << 10) + PER_THREAD
    assert cpu_s == pytest.approx(26 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("text", [None, "", "sockets: none\n", "TCP: inuse 1\n"])
def test_machine_without_the_number_of_sockets_is_refused(proc: Path, proc_fd: int, text: str | None) -> None:
    (proc / "self/net/sockstat").unlink()
    if text is not None:
        write(proc / "self/net/sockstat", text)
    with pytest.raises(OSError, match="sockstat"):
        memory_bytes(proc_fd)
