"""Memory that the kernel holds for a program outside of its processes' resident memory: it counts, or is refused."""

import pytest

from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import SandboxLimits

LIMITS = SandboxLimits(memory_bytes=210 << 20, processes=8, cpu_s=60, wall_s=60)

_IN_EACH_OF = """
import ctypes, fcntl, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
NOWHERE = ctypes.c_void_p(-1).value

def all_of(make):
    made = []
    try:
        while True:
            made.append(make())
    except OSError:
        return made

def fill(pairs, message):
    for end in (end for pair in pairs for end in pair):
        end.setblocking(False)
        try:
            while True:
                end.send(message)
        except OSError:
            pass

for _ in range({processes} - 1):
    if os.fork() == 0:
        break
"""

# Held with this limit before it counted, in MB: 376 in sockets, 756 in page tables, 724 without a first thread.
HELD = {
    "sockets": "kept = all_of(socket.socketpair)\nfill(kept, bytes(1 << 16))",
    "sockets_with_small_messages": "kept = all_of(socket.socketpair)\nfill(kept, b'x')",
    "sockets_with_datagrams": "kept = all_of(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))\n"
    "fill(kept, bytes(200_000))",
    # A page that is only read is everyone's page of zeros, and needs up to three pages of tables.
    "page_tables": """
address = 0x100000000000
while libc.mmap(address, 4096, 1, 0x100022, -1, 0) != NOWHERE:
    ctypes.c_char.from_address(address).value
    address += 1 << 30
""",
}
WITHOUT_A_FIRST_THREAD = """
def grow():
    kept = []
    try:
        while True:
            kept.append(b"x" * (1 << 20))
    except MemoryError:
        time.sleep(600)
threading.Thread(target=grow).start()
libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_memory_in_the_kernel_counts_as_the_program_s(held: str, sandbox: LinuxSandbox) -> None:
    code = _IN_EACH_OF.format(processes=7) + held + "\ntime.sleep(600)"
    assert sandbox.run_python(code, limits=LIMITS).limit == "memory"


def test_memory_of_a_process_counts_after_its_first_thread_ended(sandbox: LinuxSandbox) -> None:
    code = _IN_EACH_OF.format(processes=4) + WITHOUT_A_FIRST_THREAD
    assert sandbox.run_python(code, limits=LIMITS).limit == "memory"


def test_processes_that_hold_nothing_stay_below_that_limit(sandbox: LinuxSandbox) -> None:
    code = _IN_EACH_OF.format(processes=7) + "time.sleep(0.5)"
    result = sandbox.run_python(code, limits=LIMITS)
    assert result.limit is None, result.stderr


def test_pipes_hold_little(sandbox: LinuxSandbox) -> None:
    code = """
import fcntl, os
num_bytes = 0
kept = []
try:
    while True:
        reader, writer = os.pipe()
        kept.append(reader)
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        except PermissionError:
            pass
        os.set_blocking(writer, False)
        try:
            while True:
                num_bytes += os.write(writer, bytes(1 << 16))
        except BlockingIOError:
            os.close(writer)  # the reader keeps what was written
except OSError:
    print(len(kept) >= 50, num_bytes // len(kept))
"""
    assert sandbox.run_python(code).stdout == "True 65536\n"


def test_locks_of_ranges_are_granted_and_leave_no_record(sandbox: LinuxSandbox) -> None:
    code = """
import fcntl, os, struct
def lock(command, start):
    return fcntl.fcntl(file, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0))
file = os.open("/tmp/file", os.O_RDWR | os.O_CREAT)
for start in range(0, 100, 2):
    lock(fcntl.F_SETLK, start)
    lock(fcntl.F_SETLKW, start)
if os.fork() == 0:
    kinds = {struct.unpack("hhqqi4x", lock(fcntl.F_GETLK, start))[0] for start in range(0, 100, 2)}
    print(kinds == {fcntl.F_UNLCK}, flush=True)
    os._exit(0)
os.wait()
"""
    assert sandbox.run_python(code).stdout == "True\n"


def test_what_the_kernel_would_hold_without_a_bound_is_refused(sandbox: LinuxSandbox) -> None:
    code = """
import ctypes, fcntl, os, select, socket, struct
def attempt(act):
    try:
        print("got", act())
    except PermissionError:
        print("refused")
file = os.open("/tmp/file", os.O_RDWR | os.O_CREAT)
os.write(file, b"x")
reader, writer = os.pipe()
one, other = socket.socketpair()
attempt(select.epoll)
attempt(lambda: os.sendfile(one.fileno(), file, 0, 1))
attempt(lambda: os.sendfile(writer, file, 0, 1))
attempt(lambda: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20))
attempt(lambda: socket.send_fds(one, [b"x"], [other.fileno()]))
for command, argument in ((fcntl.F_SETPIPE_SZ, 1 << 20), (fcntl.F_SETLEASE, fcntl.F_RDLCK), (fcntl.F_NOTIFY, 1)):
    attempt(lambda: fcntl.fcntl(writer, command, argument))
attempt(lambda: fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)))
libc = ctypes.CDLL(None, use_errno=True)
def unshare_files():
    if libc.syscall(436, 100, 200, 2) == -1:
        raise OSError(ctypes.get_errno(), "close_range")
attempt(unshare_files)
"""
    result = sandbox.run_python(code)
    assert result.stdout == "refused\n" * 10, result.stderr


def test_standard_library_works_without_what_is_refused(sandbox: LinuxSandbox) -> None:
    code = """
import asyncio, fcntl, multiprocessing.connection, os, selectors, shutil, socket, subprocess, sys
async def echo():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    theirs.send(b"line\\n")
    line = await reader.readline()
    writer.close()
    return line
print(asyncio.run(echo()))
print(subprocess.run([sys.executable, "-S", "-c", "import asyncio; print(asyncio.run(asyncio.sleep(0, 1)))"],
    capture_output=True, text=True).stdout.strip())
with open("a", "wb") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(bytes(1 << 20))
shutil.copyfile("a", "b")
print(os.path.getsize("b"))
one, other = multiprocessing.connection.Pipe()
one.send([1])
print(other.recv())
"""
    result = sandbox.run_python(code)
    assert result.stdout.splitlines() == ["b'line\\n'", "1", "1048576", "[1]"], result.stderr
