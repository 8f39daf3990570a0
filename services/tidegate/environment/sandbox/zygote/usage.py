"""CPU time and memory of all processes of a run, which its monitor reads from the machine's /proc.

What the kernel holds for a program in records, tables and buffers counts as memory, at the most that it can be.
"""

import os
import sys

from tidegate.environment.sandbox.zygote.child import OPEN_FILES_MAX

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the name (proc_pid_stat(5)), counted from the state.
_CPU_FIELDS = slice(11, 15)  # user, system, and both of the children that were waited for
# Lines of /proc/PID/status: resident memory, page tables (all that a page costs that is only read), and swap.
_USED = ("VmRSS:", "VmPTE:", "VmSwap:")
# A pipe holds 16 pages; one more for the open file. Any descriptor may be one.
_DESCRIPTOR_BYTES = 17 * _PAGE_BYTES
# A thread's stack in the kernel, and its records with those of a process: together about 35 KB.
_THREAD_BYTES = 1 << 16
# A mapping of one page costs the kernel 230 bytes (measured), of the 4,096 that it is long.
_MAPPINGS_SHARE = 16


def _read(proc_fd: int, path: str) -> str:
    """A small file of /proc; empty where its process just ended."""
    try:
        file_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    except OSError:
        return ""
    try:
        return os.read(file_fd, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file_fd)


def _names(proc_fd: int, path: str) -> list[str]:
    """What is in a folder of /proc; nothing where its process just ended.

    Raises:
        PermissionError: the process's program may not be read.
    """
    try:
        folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc_fd)
    except PermissionError:
        raise
    except OSError:
        return []
    try:
        return os.listdir(folder_fd)
    except PermissionError:
        raise
    except OSError:
        return []
    finally:
        os.close(folder_fd)


class ProcessMeter:
    """Measures processes, each by itself."""

    def __init__(self, proc_fd: int) -> None:
        """``proc_fd``: the folder /proc in which they are visible."""
        self._proc_fd = proc_fd
        mappings_max = _read(proc_fd, "sys/vm/max_map_count").strip()
        self._mapped_bytes_max = int(mappings_max) * _PAGE_BYTES if mappings_max else sys.maxsize

    def of_all_but(self, own_pid: int) -> tuple[float, int]:
        """CPU seconds and bytes of memory of every process that is visible, ``own_pid`` apart."""
        pids = [int(name) for name in _names(self._proc_fd, ".") if name.isdigit()]
        used = [self.of(pid) for pid in pids if pid != own_pid]
        return sum(cpu_s for cpu_s, _, _ in used), sum(memory_bytes for _, memory_bytes, _ in used)

    def of(self, pid: int) -> tuple[float, int, list[int]]:
        """CPU seconds of a process and of the children it waited for, bytes of its memory, and its children."""
        fields = _read(self._proc_fd, f"{pid}/stat").rpartition(")")[2].split()
        cpu_s = sum(map(int, fields[_CPU_FIELDS])) / _TICKS_PER_S
        threads = [f"{pid}/task/{thread}" for thread in _names(self._proc_fd, f"{pid}/task")]
        memory_bytes = len(threads) * _THREAD_BYTES + self._memory_of(threads)
        children = [
            int(child) for thread in threads for child in _read(self._proc_fd, f"{thread}/children").split()
        ]
        return cpu_s, memory_bytes, children

    def _memory_of(self, threads: list[str]) -> int:
        """Memory and descriptors of a process, from its first thread that lives: one that ended has neither."""
        for thread in threads:
            # Only a newline ends a line: a name, which a program chooses, may hold other separators.
            lines = _read(self._proc_fd, f"{thread}/status").split("\n")
            fields = [line.split() for line in lines if line.startswith("Vm")]
            sizes_bytes = {name: int(value) << 10 for name, value, _ in fields}
            if sizes_bytes:
                mapped_bytes = min(sizes_bytes["VmSize:"], self._mapped_bytes_max)
                descriptors_bytes = self._num_descriptors(thread) * _DESCRIPTOR_BYTES
                used_bytes = sum(sizes_bytes.get(name, 0) for name in _USED)
                return used_bytes + mapped_bytes // _MAPPINGS_SHARE + descriptors_bytes
        return 0

    def _num_descriptors(self, thread: str) -> int:
        try:
            return len(_names(self._proc_fd, f"{thread}/fd"))
        except PermissionError:
            return OPEN_FILES_MAX


class Meter:
    """Measures a run. The calling process is in the run's network namespace, with no socket of its own there."""

    def __init__(self, proc_fd: int, *, socket_bytes: int) -> None:
        """``socket_bytes``: the send buffer of a new socket; no system call of a program changes it.

        Raises:
            OSError: this machine does not tell how many sockets there are.
        """
        self._proc_fd = proc_fd
        self._processes = ProcessMeter(proc_fd)
        # A message is sent while the buffer is not full, and may be as large again.
        self._socket_bytes = 2 * socket_bytes
        self._num_sockets()

    def of_tree(self, first_pid: int) -> tuple[float, int]:
        """CPU seconds and bytes of memory of ``first_pid`` and all its descendants.

        A process that lost its parent inside a pid namespace belongs to the first process of it and is counted there.
        """
        cpu_s, memory_bytes, waiting = 0.0, self._num_sockets() * self._socket_bytes, [first_pid]
        while waiting:
            own_cpu_s, own_bytes, children = self._processes.of(waiting.pop())
            cpu_s += own_cpu_s
            memory_bytes += own_bytes
            waiting += children
        return cpu_s, memory_bytes

    def _num_sockets(self) -> int:
        """All sockets of the network namespace, also one that only a message in flight still holds."""
        head, _, rest = _read(self._proc_fd, "self/net/sockstat").partition("\n")[0].partition("used")
        if not head.startswith("sockets") or not rest.strip().isdigit():
            raise OSError(0, "no number of sockets", "/proc/self/net/sockstat")
        return int(rest)
