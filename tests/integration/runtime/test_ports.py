"""Ports that a process reserves for its services: free, distinct, and reserved before a service listens."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.runtime.ports import (
    BLOCK_PORTS,
    LOOPBACK,
    PortBlocks,
    is_free,
    pick_ports,
    require_free,
    take_port,
)

pytestmark = pytest.mark.integration

# Beside the ranges of platforms and of other tests, which run meanwhile.
FIRST, LAST = 31_000, 31_000 + 3 * BLOCK_PORTS


@pytest.fixture
def two_processes() -> Iterator[tuple[PortBlocks, PortBlocks]]:
    """What two processes hold of one small range."""
    one, other = PortBlocks(first=FIRST, last=LAST), PortBlocks(first=FIRST, last=LAST)
    yield one, other
    one.close()
    other.close()


def test_taken_port_is_refused_by_name() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(ConfigError, match=rf"Port {port} \(broker_port\) is taken"):
            require_free(port, setting="broker_port")


def test_picked_ports_are_distinct_and_free() -> None:
    ports = pick_ports(12)
    assert len(set(ports)) == 12
    assert all(is_free(port) for port in ports)
    assert not set(pick_ports(5, taken=frozenset(ports))) & set(ports)


linux = pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux has names that a process' end frees and that belong to the network",
)


@linux
def test_two_processes_are_never_given_the_same_port(two_processes: tuple[PortBlocks, PortBlocks]) -> None:
    one, other = two_processes
    of_one: set[int] = set()
    of_other: set[int] = set()
    for _ in range(10):  # as two platforms that start in the same moment: nothing listens yet
        of_one |= set(pick_ports(12, blocks=one))
        of_other |= set(pick_ports(9, blocks=other))
    assert (len(of_one), len(of_other)) == (120, 90)
    assert not of_one & of_other


@linux
def test_range_that_others_hold_is_exhausted_by_name(two_processes: tuple[PortBlocks, PortBlocks]) -> None:
    one, other = two_processes
    assert len(pick_ports(LAST - FIRST, blocks=one)) == LAST - FIRST
    with pytest.raises(UnavailableError, match=rf"Only 0 of 3 ports are free between {FIRST} and {LAST}"):
        pick_ports(3, blocks=other)
    assert set(pick_ports(3, blocks=one)) <= set(range(FIRST, LAST)), "its own come again"
    one.close()
    assert len(pick_ports(3, blocks=other)) == 3


@linux
def test_port_of_a_process_can_be_taken_once_that_was_killed(
    two_processes: tuple[PortBlocks, PortBlocks],
) -> None:
    here, _ = two_processes
    program = (
        "import sys\n"
        "from tidegate.runtime.ports import PortBlocks, pick_ports\n"
        f"blocks = PortBlocks(first={FIRST}, last={LAST})\n"
        "print(pick_ports(1, blocks=blocks)[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert is_free(port)
        assert not take_port(port, blocks=here)
        process.kill()
    assert take_port(port, blocks=here)
    assert port not in pick_ports(BLOCK_PORTS, blocks=here)
