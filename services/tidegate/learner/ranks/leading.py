"""Rank 0: a trainer whose updates all ranks compute together, and a heartbeat between updates.

Consumes calls of the learner's loop; produces commands to the other ranks; waits for their part of an update; unblocked
by them, or by ``rank_timeout_s``. Between updates a thread sends ``Wait`` several times per ``rank_timeout_s``, so that
a long wait for a batch or a long warm-up differs from a failure, and a failure is detected without an update.
"""

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import priorities_of
from tidegate.learner.optim.token_gaps import TokenGaps, token_gaps_of
from tidegate.learner.ranks.agreement import CHECK_EVERY_UPDATES, check_same_state
from tidegate.learner.ranks.group import RankGroup, RankLostError
from tidegate.learner.ranks.messages import POLICY, STATE, Restore, StopRanks, Update, Wait, send
from tidegate.learner.ranks.port import SharedTrainer
from tidegate.runtime.drain import Drain
from tidegate.runtime.stats_board import StatsBoard

BEATS_PER_TIMEOUT = 8
BEAT_S_MAX = 2.0
WATCH_PERIOD_S = 0.25
STOP_WAIT_S = 5.0


class RankLeavingError(TidegateError):
    """Another rank is stopping, and the group cannot continue without it."""

    status = "UNAVAILABLE"


class LeadingTrainer:
    """Rank 0's trainer for the learner's loop.

    A failed exchange leaves the ranks in different states, so there are no retries: ``problem`` is raised from then
    on, and the process ends.
    """

    def __init__(self, trainer: SharedTrainer, group: RankGroup, *, stats: StatsBoard) -> None:
        """``trainer`` computes this rank's part; the heartbeat starts now and ends with ``stop``."""
        self._trainer = trainer
        self._group = group
        self._stats = stats
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._checked = False
        self.problem: TidegateError | None = None
        self.leaving = False
        self._beat_s = min(BEAT_S_MAX, group.timeout_s / BEATS_PER_TIMEOUT)
        # A daemon: it may block in an exchange without a peer, and must not keep a failed process alive.
        self._beating = threading.Thread(target=self._beat, name="ranks", daemon=True)
        self._beating.start()

    def prepare(self, batch: Any, /) -> Any:
        """See ``optim.port.Trainer``."""
        return self._trainer.prepare(batch)

    def update(self, batch: Any, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """See ``optim.port.Trainer``; adds metrics of the seconds to send the batch, to exchange and to compute.

        Raises:
            RankLostError: a rank is lost.
            RankMismatchError: the ranks hold different parameters.
        """
        with self._exchange():
            started_s = time.perf_counter()
            packed = self._trainer.pack(batch)
            check = not self._checked or number % CHECK_EVERY_UPDATES == 0
            command = Update(number=number, response=response, values=dict(packed.values), check=check)
            send(self._group, command, packed.tensors)
            sent_s, waited_s = time.perf_counter(), self._group.waited_s
            metrics = self._trainer.update(batch, number=number, response=response)
            if check:
                check_same_state(self._group, self._trainer.live(), number=number)
                self._checked = True
            self._hear()
            reduce_s = self._group.waited_s - waited_s
            compute_s = time.perf_counter() - sent_s - reduce_s
        send_s = sent_s - started_s
        self._stats.add(statistics.SEND_S, send_s)
        self._stats.add(statistics.REDUCE_S, reduce_s)
        self._stats.add(statistics.COMPUTE_S, compute_s)
        return {**metrics, "send_s": send_s, "reduce_s": reduce_s, "compute_s": compute_s}

    def token_gaps(self) -> list[TokenGaps]:
        """See ``optim.token_gaps.TokenTrainer``: rank 0 computes the loss of all rows."""
        return token_gaps_of(self._trainer)

    def priorities(self) -> NDArray[np.float32] | None:
        """See ``optim.replay_port.ReplayTrainer``; None of a trainer without replay."""
        return priorities_of(self._trainer)

    def policy(self) -> dict[str, Array]:
        """See ``optim.port.Trainer``."""
        return self._trainer.policy()

    def state(self) -> TrainerState:
        """See ``optim.port.Trainer``."""
        return self._trainer.state()

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint on every rank.

        Raises:
            StaleFolderError: it holds another network or another optimiser.
            RankLostError: a rank is lost.
        """
        # This rank first: a checkpoint that does not fit is rejected before it is sent.
        self._trainer.restore(policy, state)
        tensors = {f"{POLICY}{name}": torch.tensor(array) for name, array in policy.items()}
        tensors |= {f"{STATE}{name}": torch.tensor(array) for name, array in state.tensors.items()}
        with self._exchange():
            send(self._group, Restore(values=state.values), tensors)
            self._hear()

    def share(self) -> None:
        """Send this rank's state to every rank, itself included, so that all have the same bits.

        Raises:
            RankLostError: a rank is lost.
        """
        self.restore(self.policy(), self.state())

    async def watch(self, drain: Drain) -> None:
        """Wait for draining.

        Raises:
            RankLostError: a rank is lost.
            RankLeavingError: another rank is stopping. Rank 0 drains first, so nothing is lost.
        """
        while not await drain.sleep(WATCH_PERIOD_S):
            if self.problem is not None:
                raise self.problem
            if self.leaving:
                raise RankLeavingError(
                    "Another rank is stopping",
                    why="its pod is being replaced or moved, or an operator stopped it",
                    fix="nothing: a checkpoint is written, and the ranks resume from it once all are back",
                )

    def stop(self, *, completed: bool = False) -> None:
        """Stop the heartbeat and the other ranks, if they are still connected. ``completed``: so is the run."""
        self._ended.set()
        self._beating.join(timeout=STOP_WAIT_S)
        if not self._turn.acquire(timeout=STOP_WAIT_S):
            return  # an abandoned update is still running; the others detect the end of this process
        try:
            if self.problem is None:
                send(self._group, StopRanks(completed=completed))
                self._group.close()
        except RankLostError as error:
            self.problem = error
        finally:
            self._turn.release()

    @contextmanager
    def _exchange(self) -> Generator[None]:
        with self._turn:
            if self.problem is not None:
                raise self.problem
            try:
                yield
            except TidegateError as error:
                self.problem = error
                raise
            except Exception as error:
                self.problem = RankLostError("An update of several ranks was interrupted", why=str(error))
                raise

    def _hear(self) -> None:
        """After each command every rank reports whether it is stopping."""
        self.leaving = bool(self._group.largest(torch.tensor([int(self.leaving)])))

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_s):
            if not self._turn.acquire(blocking=False):
                continue  # a running command replaces the heartbeat
            try:
                if self.problem is None:
                    send(self._group, Wait())
                    self._hear()
            except RankLostError as error:
                self.problem = error
                return
            finally:
                self._turn.release()
