"""A group that records the commands of rank 0 in order and replays them."""

from collections import deque
from typing import cast

import torch
from torch import Tensor

from tidegate.learner.ranks.group import RankGroup, RankLostError


class Tape:
    """Sends onto the tape, or plays it once ``recorded``; at its end rank 0 is gone."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.recorded = False
        self.asked: list[int] = []
        self.closed = False
        self._sent: deque[Tensor] = deque()

    def as_group(self) -> RankGroup:
        return cast("RankGroup", self)

    def send_to_all(self, tensor: Tensor) -> None:
        if not self.recorded:
            self._sent.append(tensor.clone())
        elif self._sent:
            tensor.copy_(self._sent.popleft())
        else:
            raise RankLostError("the tape is at its end")

    def largest(self, values: Tensor) -> Tensor:
        self.asked.append(int(values[0]))
        return values

    def close(self) -> None:
        self.closed = True
