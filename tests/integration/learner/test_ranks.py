"""Ranks as processes, connected by torch.distributed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integration.learner.rank_process import UPDATES, batch, make
from tests.support.broker import free_port
from tidegate.learner.ranks.port import ALONE

pytestmark = pytest.mark.integration

# Not a promised bound: the processes load torch on few cores. A hang is the failure.
TIMEOUT_S = 200.0
TOLERANCE = 1e-6


class Group:
    """The processes of one group, whose output goes to a file each."""

    def __init__(self, folder: Path, scenario: str, kind: str, *, count: int) -> None:
        self.folder = folder
        shared = {
            **os.environ,
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            with (folder / f"out-{rank}").open("wb") as output:
                command = (sys.executable, "-m", "tests.integration.learner.rank_process")
                self.processes.append(
                    subprocess.Popen(
                        [*command, scenario, kind, str(folder)],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    )
                )

    def output(self, rank: int) -> str:
        return (self.folder / f"out-{rank}").read_text()

    def until_waiting(self) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while "waiting" not in self.output(0):
            assert self.processes[0].poll() is None, self.output(0)
            assert time.monotonic() < deadline_s, "rank 0 never waited"
            time.sleep(0.05)

    def end(self) -> list[int]:
        return [process.wait(timeout=TIMEOUT_S) for process in self.processes]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def begin(scenario: str, kind: str = "actor_critic", *, count: int = 2) -> Group:
        groups.append(Group(tmp_path, scenario, kind, count=count))
        return groups[-1]

    yield begin
    for group in groups:
        for process in group.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("kind", "count", "scenario"), [("actor_critic", 3, "idle"), ("language_model", 2, "train")]
)
def test_ranks_train_what_one_rank_trains_and_outlast_a_wait_longer_than_their_timeout(
    start: Callable[..., Group], kind: str, count: int, scenario: str
) -> None:
    group = start(scenario, kind, count=count)
    assert group.end() == [0] * count, [group.output(rank) for rank in range(count)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if kind == "language_model" else before)
    try:
        alone = make(kind, ALONE)
        alone.restore(alone.policy(), alone.state())
        for number in range(1, UPDATES + 1):
            alone.update(alone.prepare(batch(kind, number)), number=number)
    finally:
        torch.set_default_dtype(before)
    with np.load(group.folder / "policy.npz", allow_pickle=False) as policy:
        for name, array in alone.policy().items():
            np.testing.assert_allclose(policy[name], array, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize(
    ("scenario", "number"), [("wait", signal.SIGKILL), ("hang", signal.SIGSTOP)], ids=["killed", "hanging"]
)
def test_a_rank_that_is_killed_or_hangs_ends_rank_0_although_it_only_waits(
    start: Callable[..., Group], scenario: str, number: signal.Signals
) -> None:
    group = start(scenario)
    group.until_waiting()
    group.processes[1].send_signal(number)
    assert group.processes[0].wait(timeout=TIMEOUT_S) == 1
    assert "RankLostError: Rank 0 of 2 lost rank 1" in group.output(0)


def test_a_rank_ends_when_rank_0_is_killed(start: Callable[..., Group]) -> None:
    group = start("wait")
    group.until_waiting()
    group.processes[0].kill()
    assert group.processes[1].wait(timeout=TIMEOUT_S) == 1
    assert "RankLostError: Rank 1 of 2" in group.output(1)


def test_a_stopping_rank_makes_rank_0_stop_all_cleanly(start: Callable[..., Group]) -> None:
    group = start("leave")
    group.until_waiting()
    group.processes[1].terminate()
    assert group.end() == [0, 0]
    assert "ended cleanly" in group.output(0)
    assert "ended cleanly" in group.output(1)


def test_ranks_that_hold_different_parameters_end_and_name_the_tensor(start: Callable[..., Group]) -> None:
    group = start("mismatch")
    assert group.end() == [1, 1]
    for rank in (0, 1):
        assert "RankMismatchError" in group.output(rank)
        assert "tensors differ" in group.output(rank)
