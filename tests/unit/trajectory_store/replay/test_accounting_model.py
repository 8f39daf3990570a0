"""Random histories of a store that replays beside an account that forgets nothing and folds nothing."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trajectory_store.replay.building import (
    MAIN,
    NOW_S,
    UNITS,
    commit,
    held_by_checkpoint,
    insert,
    open_replay,
    replay_config,
    replay_totals,
    sample,
    started_replay,
    uses_of,
)
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import verify
from tidegate.wire.clients.trajectory_store import ConsumedBatch
from tidegate.wire.samples import ReplaySample

HISTORIES = 25
ACTIONS = 60


class Account:
    """Every update ever made, with its units; a learner that updates, loses updates and comes back."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.uses_max = int(self.rng.choice([0, 1, 2]))
        self.config = replay_config(uses_max=self.uses_max, n_steps=int(self.rng.integers(1, 4)))
        self.folder = folder
        self.store: Store = started_replay(folder, self.config)
        self.tree = LineageTree().add(Lineage(name=MAIN))
        self.version = PolicyVersion(lineage=MAIN, step=0)
        self.updates: list[tuple[PolicyVersion, list[int]]] = []
        # Versions with a checkpoint, oldest first, each with the batches whose commit it does not know of.
        self.checkpoints: list[tuple[PolicyVersion, list[ConsumedBatch]]] = []
        self.held: dict[PolicyVersion, ReplaySample] = {}
        self.num_inserted = 0

    def act(self) -> None:
        name = self.rng.choice(
            ["insert", "update", "update", "hold", "release", "checkpoint", "restore", "restart"],
            p=[0.24, 0.22, 0.22, 0.08, 0.04, 0.1, 0.05, 0.05],
        )
        getattr(self, str(name))()

    def insert(self) -> None:
        insert(self.store, self.num_inserted, version=PolicyVersion(lineage=MAIN, step=0))
        self.num_inserted += 1

    def hold(self) -> None:
        """ReplaySample for a later version, as a prefetch does."""
        ahead = PolicyVersion(lineage=self.version.lineage, step=self.version.step + len(self.held) + 1)
        if ahead not in self.held:
            batch = sample(self.store, ahead, batch_size=int(self.rng.integers(1, 6)))
            if batch is not None:
                self.held[ahead] = batch

    def release(self) -> None:
        for version in list(self.held):
            self.store.release(self.held.pop(version).batch_id, dropped=(), now_s=NOW_S)

    def update(self, *, acknowledged: bool = True) -> ReplaySample | None:
        batch = self.held.pop(self.version, None)
        batch = batch or sample(self.store, self.version, batch_size=int(self.rng.integers(1, 6)))
        if batch is None:
            return None
        if acknowledged:
            commit(self.store, batch, self.version)
        self.updates.append((self.version, batch.ids.tolist()))
        self.version = PolicyVersion(lineage=self.version.lineage, step=self.version.step + 1)
        return batch

    def checkpoint(self) -> None:
        """Write one, sometimes with an update whose commit never arrives."""
        held: list[ConsumedBatch] = []
        if self.rng.random() < 0.3:
            before = self.version
            batch = self.update(acknowledged=False)
            if batch is not None:
                held.append(held_by_checkpoint(batch, before))
        self.checkpoints.append((self.version, held))
        del self.checkpoints[:-2]
        if held:
            # The learner dies before the commit arrives, and comes back from this checkpoint.
            self._restore_from(*self.checkpoints[-1])
        else:
            self.store.mark_checkpointed(self.checkpoints[0][0])

    def restore(self) -> None:
        if self.checkpoints:
            self._restore_from(*self.checkpoints[-1])

    def _restore_from(self, version: PolicyVersion, held: list[ConsumedBatch]) -> None:
        name = LineageName(f"{len(self.tree.lineages)}-{self.rng.integers(1 << 30):x}")
        lineage = Lineage(name=name, parent=version.lineage, fork_step=version.step)
        self.tree = self.tree.add(lineage)
        self.held.clear()
        self.version = PolicyVersion(lineage=name, step=version.step)
        self.store.open_lineage(lineage, learner_id=str(name), consumed=held, now_s=NOW_S)

    def restart(self) -> None:
        self.store.close()
        self.store = open_replay(self.folder, self.config)

    def surviving(self, at: PolicyVersion | None = None) -> Counter[int]:
        head = at or self.version
        counted: Counter[int] = Counter()
        for version, ids in self.updates:
            produced = PolicyVersion(lineage=version.lineage, step=version.step + 1)
            if self.tree.descends(head, produced):
                counted.update(ids)
        return counted

    def check(self) -> None:
        assert self.store.replay is not None
        counted = self.surviving()
        resident = self.store.replay.buffer.pages.seqs()
        assert uses_of(self.store) == {
            unit: count for unit, count in counted.items() if unit // UNITS in resident
        }
        totals = replay_totals(self.store, self.checkpoints[-1][0] if self.checkpoints else None)
        total = counted.total()
        assert (totals.sampled, totals.recounted, totals.lost_updates, totals.overused) == (
            total,
            total,
            0,
            0,
        )
        assert not self.uses_max or max(counted.values(), default=0) <= self.uses_max
        if self.checkpoints:
            assert totals.sampled_at == self.surviving(self.checkpoints[-1][0]).total()
        ledger = self.store.totals()
        assert ledger.rows() == self.num_inserted
        assert ledger.trained_twice == 0
        trained = {unit // UNITS for unit in counted}
        assert ledger.trained == len(trained)
        self._check_rows(trained, resident)

    def _check_rows(self, trained: set[int], resident: set[int]) -> None:
        held = {unit // UNITS for batch in self.held.values() for unit in batch.ids.tolist()} - trained
        for seq, state in self.store.ledger.connection.execute("SELECT seq, state FROM trajectories"):
            if seq in trained:
                assert state == "trained"
            elif seq in held:
                assert state == "leased"
            else:
                assert state == ("available" if seq in resident else "dropped")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_uses_are_those_of_the_surviving_updates_whatever_happens(tmp_path: Path, seed: int) -> None:
    account = Account(tmp_path, seed)
    for _ in range(ACTIONS):
        account.act()
        account.check()
    account.store.close()
    assert verify(account.store.ledger_path).findings == []
