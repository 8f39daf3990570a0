"""How the failure of an exchange ends, with gloo's store and with a fake process group in the place of NCCL."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from structlog.testing import capture_logs
from torch._C._distributed_c10d import FileStore

from tidegate.learner.config import LearnerConfig
from tidegate.learner.ranks import group as group_module
from tidegate.learner.ranks.group import NCCL_ENVIRONMENT, RankGroup, RankLostError
from tidegate.learner.ranks.lost_ranks import lost_ranks, named
from tidegate.learner.ranks.membership import Membership


@pytest.mark.slow
def test_ranks_that_do_not_notice_the_failure_are_the_lost_ones(tmp_path: Path) -> None:
    found: dict[int, tuple[int, ...]] = {}

    def notice(rank: int) -> None:
        # A generous time: the machine may be busy, and only the lost rank makes anybody wait for all of it.
        found[rank] = lost_ranks(FileStore(str(tmp_path / "store"), 4), rank=rank, count=4, wait_s=5.0)

    threads = [threading.Thread(target=notice, args=(rank,)) for rank in (0, 1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: (2,), 1: (2,), 3: (2,)}


class GoneBoard:
    """The store of a rank 0 that is dead."""

    def set(self, key: str, value: str, /) -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    def check(self, keys: list[str], /) -> bool:
        raise dist.DistNetworkError("Connection reset by peer")


def test_rank_0_is_the_lost_one_where_its_store_is_gone() -> None:
    assert lost_ranks(GoneBoard(), rank=2, count=4) == (0,)


@pytest.mark.parametrize(
    ("ranks", "text"), [((3,), "rank 3"), ((1, 2), "ranks 1, 2"), ((), "another one, which answers again")]
)
def test_lost_ranks_are_named(ranks: tuple[int, ...], text: str) -> None:
    assert named(ranks) == text


class EmptyBoard:
    """A store that holds no reports of other ranks."""

    def set(self, key: str, value: str, /) -> None:
        """Discarded."""

    def check(self, keys: list[str], /) -> bool:
        return False


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A process group of which the test sees how it was made; it has no other member."""
    made: dict[str, Any] = {}

    def init_process_group(**settings: Any) -> None:
        made.update(settings, environment=dict(os.environ))

    def new_group(*, backend: str, timeout: timedelta) -> object:
        made["timeout_s"] = timeout.total_seconds()
        return object()

    for name in NCCL_ENVIRONMENT:
        monkeypatch.setenv(name, "unset")  # restored afterwards
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(group_module, "_board", EmptyBoard)

    def notice(board: object, *, rank: int, count: int) -> tuple[int, ...]:
        return lost_ranks(EmptyBoard(), rank=rank, count=count, wait_s=0.0)

    monkeypatch.setattr(group_module, "lost_ranks", notice)
    monkeypatch.setattr(torch.cuda, "current_stream", stream_that(lambda: None))
    return made


class FakeStream:
    """A stream of a device, which ``finish``es its kernels when it is waited for."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def synchronize(self) -> None:
        self._finish()


def stream_that(finish: Callable[[], None]) -> Callable[[torch.device], FakeStream]:
    return lambda _device: FakeStream(finish)


def open_group(*, timeout_s: float = 7.0) -> RankGroup:
    member = Membership(rank=0, count=2, local_rank=0, store="unused")
    return RankGroup(member, device=torch.device("cuda", 0), timeout_s=timeout_s)


def test_nccl_is_told_to_raise_before_it_is_opened(nccl: dict[str, Any]) -> None:
    open_group()
    assert nccl["backend"] == "cpu:gloo,cuda:nccl"
    assert nccl["environment"]["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert nccl["environment"]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert nccl["timeout_s"] == 7.0


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    "text",
    [
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
        "NCCL error: remote process exited or there was a network error",
    ],
)
def test_error_of_nccl_ends_as_a_lost_rank_with_its_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    group = open_group()

    def all_reduce(tensor: object, **settings: object) -> None:
        raise dist.DistBackendError(f"{text}\nwith a long trace")

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with pytest.raises(RankLostError, match=r"Rank 0 of 2 lost rank 1\b") as raised:
        group.add_up([torch.zeros(1)])
    assert text in raised.value.why
    assert "rank_timeout_s" in raised.value.fix


@pytest.mark.usefixtures("nccl")
def test_gradient_step_near_the_timeout_is_told_with_the_value_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    # Before the group is opened: it reads the clock then, and that of a machine starts at 0 with it.
    monkeypatch.setattr(group_module.time, "perf_counter", lambda: now_s)
    group = open_group(timeout_s=100.0)

    def all_reduce(tensor: object, **settings: object) -> None:
        """Return at once."""

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    group.add_up([torch.zeros(1)])
    with capture_logs() as logs:
        for step_s in (40.0, 70.0, 60.0):
            now_s += step_s
            group.add_up([torch.zeros(1)])
    (line,) = [line for line in logs if line["event"] == "rank_timeout_short"]
    assert (line["computed_s"], line["rank_timeout_s"]) == (70.0, 100.0)
    assert line["fix"] == "set learner.rank_timeout_s to 210 or more"


@pytest.mark.usefixtures("nccl")
def test_time_of_launched_kernels_is_not_that_of_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, kernels_s = 1_000.0, 0.0

    def finish() -> None:
        nonlocal now_s, kernels_s
        now_s, kernels_s = now_s + kernels_s, 0.0

    def all_reduce(tensor: object, **settings: object) -> None:
        nonlocal now_s
        finish()  # as NCCL does, which waits for the stream
        now_s += 0.5

    monkeypatch.setattr(group_module.time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    group = open_group()
    monkeypatch.setattr(torch.cuda, "current_stream", stream_that(finish))
    kernels_s = 4.0
    group.add_up([torch.zeros(1)])
    assert group.waited_s == 0.5


def test_default_timeout_is_longer_than_a_backward_pass_of_a_large_batch() -> None:
    """A million tokens on 8 ranks take 20 to 90 s (issue 18)."""
    assert LearnerConfig().rank_timeout_s >= 5 * 90.0
