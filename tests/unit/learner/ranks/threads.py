"""Ranks that are threads of one process: the trainers' side of the port, without torch.distributed."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

TIMEOUT_S = 60.0
ResultT = TypeVar("ResultT")


class ThreadRanks:
    """One of them; ``table`` is where all put what they add up."""

    def __init__(self, rank: int, count: int, barrier: threading.Barrier, table: dict[int, Tensor]) -> None:
        self.rank = rank
        self.count = count
        self._barrier = barrier
        self._table = table

    def gather(self, part: Tensor, rows_B: Tensor, *, num_rows: int) -> Tensor:
        whole = torch.zeros((num_rows, *part.shape[1:]), dtype=part.dtype)
        whole[rows_B] = part.detach()
        return self._sum(whole)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self._sum(tensor))

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            parameter.grad = self._sum(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )

    def _sum(self, mine: Tensor) -> Tensor:
        self._table[self.rank] = mine
        self._barrier.wait()
        total = sum((self._table[rank] for rank in range(self.count)), start=torch.zeros_like(mine))
        self._barrier.wait()
        return total


def together(count: int, work: Callable[[ThreadRanks], ResultT]) -> list[ResultT]:
    """What ``work`` returns on each of ``count`` ranks; the first error of any of them is raised."""
    barrier, table = threading.Barrier(count, timeout=TIMEOUT_S), dict[int, Tensor]()

    def run(rank: int) -> ResultT:
        try:
            return work(ThreadRanks(rank, count, barrier, table))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(max_workers=count) as pool:
        ranks = [pool.submit(run, rank) for rank in range(count)]
        errors = [error for rank in ranks if (error := rank.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [rank.result() for rank in ranks]
