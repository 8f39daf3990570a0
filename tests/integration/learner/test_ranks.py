"""Ranks as processes, connected by torch.distributed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.learner import rank_process
from tests.integration.learner.rank_process import UPDATES, batch, make
from tests.support.broker import free_port
from tidegate.learner.ranks.port import ALONE

pytestmark = pytest.mark.integration

# Not a promised bound: the processes load torch on few cores. A hang is the failure.
TIMEOUT_S = 200.0
TOLERANCE = 1e-6


class Group:
    """The processes of one group, whose output goes to a file each."""

    def __init__(
        self, forks: ForkServerContext, folder: Path, scenario: str, kind: str, *, count: int
    ) -> None:
        self.folder = folder
        shared = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.processes = [
            forks.Process(
                target=rank_process.main,
                args=(
                    *(scenario, kind, folder, folder / f"out-{rank}"),
                    {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                ),
            )
            for rank in range(count)
        ]
        for rank, process in enumerate(self.processes):
            (folder / f"out-{rank}").touch()
            process.start()

    def output(self, rank: int) -> str:
        return (self.folder / f"out-{rank}").read_text()

    def until_waiting(self) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while "waiting" not in self.output(0):
            assert self.processes[0].exitcode is None, self.output(0)
            assert time.monotonic() < deadline_s, "rank 0 never waited"
            time.sleep(0.05)

    def exit_code(self, rank: int) -> int | None:
        """How a rank ended, None if it did not in time."""
        self.processes[rank].join(timeout=TIMEOUT_S)
        return self.processes[rank].exitcode

    def end(self) -> list[int | None]:
        return [self.exit_code(rank) for rank in range(len(self.processes))]

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServerContext]:
    """A process that has loaded torch, whose forks the ranks are: each would take 3 CPU-seconds to load it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([rank_process.__name__])
    yield context
    # There is no public way, and it would outlive these tests.
    server: Any = vars(forkserver)["_forkserver"]
    server._stop()


@pytest.fixture
def start(tmp_path: Path, forks: ForkServerContext) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def begin(scenario: str, kind: str = "actor_critic", *, count: int = 2) -> Group:
        groups.append(Group(forks, tmp_path, scenario, kind, count=count))
        return groups[-1]

    yield begin
    for group in groups:
        for process in group.processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(
    ("kind", "count", "scenario"),
    [("actor_critic", 3, "idle"), ("language_model", 2, "train"), ("actor_critic", 2, "back")],
)
def test_ranks_train_what_one_rank_trains_after_a_long_wait_and_after_a_rollback(
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
    group.send(1, number)
    assert group.exit_code(0) == 1
    assert "RankLostError: Rank 0 of 2 lost rank 1" in group.output(0)


def test_a_rank_ends_when_rank_0_is_killed(start: Callable[..., Group]) -> None:
    group = start("wait")
    group.until_waiting()
    group.send(0, signal.SIGKILL)
    assert group.exit_code(1) == 1
    assert "RankLostError: Rank 1 of 2" in group.output(1)


def test_a_stopping_rank_makes_rank_0_stop_all_cleanly(start: Callable[..., Group]) -> None:
    group = start("leave")
    group.until_waiting()
    group.send(1, signal.SIGTERM)
    assert group.end() == [0, 0]
    assert "ended cleanly" in group.output(0)
    assert "ended cleanly" in group.output(1)


def test_ranks_that_hold_different_parameters_end_and_name_the_tensor(start: Callable[..., Group]) -> None:
    group = start("mismatch")
    assert group.end() == [1, 1]
    for rank in (0, 1):
        assert "RankMismatchError" in group.output(rank)
        assert "tensors differ" in group.output(rank)
