"""Freed memory stays with its process, in a process of its own."""

import subprocess
import sys

import pytest

# Page faults of the last of many equal messages, as the kernel counts them.
PROGRAM = """
import resource
from tidegate.runtime.freed_memory import keep_freed_memory

if {keeps} and not keep_freed_memory():
    raise SystemExit(77)
parts = [bytes(100_000)] * 4
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [b"".join(parts) for _ in range(8)]
        del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, keeps: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keeps=keeps)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode == 77:
        pytest.skip("this C library keeps no freed memory: it has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_messages_of_the_same_size_use_the_same_pages_again() -> None:
    assert page_faults(keeps=False) > 500
    assert page_faults(keeps=True) < 10
