"""The ranks as torch.distributed connects them: gloo between CPUs, NCCL between GPUs.

Not DistributedDataParallel: it requires a module whose forward pass produces the gradients, and averages the gradients
of each rank's own loss. Here the actor-critic is a function of a dict of tensors, the ranks' shares differ in size, and
the loss is over the rows of all ranks, so gradients are summed and not averaged. The cost is DDP's overlap of the
exchange with the backward pass; buckets keep the exchange itself at line rate.

A rank detects the death of a peer immediately where its connection closes (gloo, NCCL over a network). It detects a
hanging peer, or a lost network, after ``timeout_s``. NCCL is told to raise then: by default it ends the process by a
signal, and neither the log nor a supervisor would learn why.
"""

import os
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from tidegate.core.errors import TidegateError
from tidegate.learner.ranks.lost_ranks import NoticeBoard, lost_ranks, named
from tidegate.learner.ranks.membership import Membership

# Large enough that bandwidth and not latency dominates, small enough that its copy is cheap.
BUCKET_BYTES = 32 << 20
# Rank 0 may have to wait for its broker first, whose image may have to be pulled and its pod scheduled. An earlier
# timeout would only restart all ranks; the launcher detects a rank that dies before joining.
MEETING_TIMEOUT_S = 1800.0
# An exchange returns once it is done, and raises where it fails or takes longer than the group's timeout.
NCCL_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
# Of ``timeout_s``, from which the time between two exchanges is worth a warning.
TIMEOUT_SHARE_MAX = 0.5


class RankLostError(TidegateError):
    """A rank is lost or hangs, so that no update is possible; the group restarts from the newest checkpoint."""

    status = "UNAVAILABLE"


class RankMismatchError(TidegateError):
    """Ranks disagree on settings or parameters."""

    status = "FAILED_PRECONDITION"


class RankGroup:
    """One process' membership in the group. Used by one thread at a time; ``waited_s`` sums the exchanges."""

    def __init__(self, member: Membership, *, device: torch.device, timeout_s: float) -> None:
        """Join the other ranks; returns once all joined. ``timeout_s`` bounds every later exchange.

        Raises:
            RankLostError: not all joined within ``MEETING_TIMEOUT_S``.
        """
        self.rank = member.rank
        self.count = member.count
        self.device = device
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        self._board: NoticeBoard | None = None
        # Of the computation between two exchanges, which the others wait for within ``timeout_s``.
        self._longest_s = 0.0
        self._exchanged_at_s = time.perf_counter()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            os.environ.update(NCCL_ENVIRONMENT)
        with self._exchange("joining the ranks"):
            dist.init_process_group(
                backend=backend,
                init_method=f"file://{member.store}" if member.store else "env://",
                rank=member.rank,
                world_size=member.count,
                timeout=timedelta(seconds=MEETING_TIMEOUT_S),
            )
            # A group's timeout is final, so the joined ranks create another group.
            group: Any = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
        self._group = cast("dist.ProcessGroup", group)
        self._board = _board()

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        """See ``port.Ranks``. Each rank fills its own rows and sums over ranks; the others' zeros make it exact."""
        whole = torch.zeros((num_rows, *part.shape[1:]), dtype=part.dtype, device=part.device)
        whole[rows_B] = part.detach()
        self.add_up([whole])
        return whole

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """See ``port.Ranks``."""
        for bucket in _buckets(parameters):
            flat = torch.cat(
                [
                    (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).reshape(-1)
                    for parameter in bucket
                ]
            )
            self.add_up([flat])
            offset = 0
            for parameter in bucket:
                parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """See ``port.Ranks``."""
        with self._exchange("a sum over the ranks"):
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)

    def largest(self, values: Tensor) -> Tensor:
        """The maximum of each value over the ranks.

        Raises:
            RankLostError: a rank is lost.
        """
        result = values.clone()
        with self._exchange("a maximum over the ranks"):
            dist.all_reduce(result, op=dist.ReduceOp.MAX, group=self._group)  # pyright: ignore[reportUnknownMemberType] (the same)
        return result

    def send_to_all(self, tensor: Tensor) -> None:
        """Rank 0's tensor, in place, on every rank.

        Raises:
            RankLostError: a rank is lost.
        """
        with self._exchange("a broadcast of rank 0"):
            dist.broadcast(tensor, src=0, group=self._group)

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _exchange(self, what: str) -> Generator[None]:
        _finish_computing(self.device)
        started_s = time.perf_counter()
        self._notice_computation(started_s - self._exchanged_at_s)
        try:
            yield
        except (RuntimeError, ValueError) as error:  # raised by torch.distributed for every backend
            lost = () if self._board is None else lost_ranks(self._board, rank=self.rank, count=self.count)
            raise RankLostError(
                f"Rank {self.rank} of {self.count} lost {named(lost)}",
                why=f"{what} failed after {time.perf_counter() - started_s:.1f} s: {_first_line(error)}",
                fix="nothing: the ranks restart and resume from the newest checkpoint; if it repeats, see the log "
                "of the rank that failed first, and learner.rank_timeout_s",
            ) from error
        finally:
            self._exchanged_at_s = time.perf_counter()
            self.waited_s += self._exchanged_at_s - started_s

    def _notice_computation(self, seconds: float) -> None:
        """Warn when a rank computes for so long between two exchanges that others would soon take it for lost."""
        if self._board is None or seconds <= max(self._longest_s, TIMEOUT_SHARE_MAX * self.timeout_s):
            return
        self._longest_s = seconds
        structlog.get_logger(f"learner-rank-{self.rank}").warning(
            "rank_timeout_short",
            computed_s=round(seconds, 1),
            rank_timeout_s=self.timeout_s,
            fix=f"set learner.rank_timeout_s to {3 * seconds:.0f} or more",
        )


def _finish_computing(device: torch.device) -> None:
    """Wait for the kernels that this rank launched, which an exchange waits for in any case (``NCCL_ENVIRONMENT``).

    Launching returns at once: without it their time would count as that of the exchange.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _board() -> NoticeBoard:
    """The store in which the ranks met."""
    return dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] (torch has no public way)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _buckets(parameters: Iterable[Tensor]) -> Generator[list[Tensor]]:
    bucket: list[Tensor] = []
    num_bytes = 0
    for parameter in parameters:
        bucket.append(parameter)
        num_bytes += parameter.numel() * parameter.element_size()
        if num_bytes >= BUCKET_BYTES:
            yield bucket
            bucket, num_bytes = [], 0
    if bucket:
        yield bucket
