"""The learner: its check before the loss and its lineages are the service's own code; an update is only time."""

from collections.abc import Callable
from typing import TypeAlias

from tidegate.core.batching import Candidate
from tidegate.core.ids import PolicyVersion, task_of
from tidegate.core.records import Trajectory
from tidegate.core.staleness import LineageTree
from tidegate.fleet.draws import Draws
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.meters import Meters
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.queue import RUN
from tidegate.fleet.store import FleetStore
from tidegate.fleet.weights import FleetWeights
from tidegate.learner.state import JudgedTrajectory, OutdatedBatch, lineage_to_open, next_version, recheck

CHECKPOINTS_KEPT = 3

# Called with the version and the batch of each gradient, at the moment of the loss.
Gradient: TypeAlias = Callable[[PolicyVersion, tuple[Candidate, ...]], None]


class FleetLearner:
    """Leases, checks, trains for a while, commits, publishes. Holds one batch at most."""

    def __init__(
        self,
        plan: FleetPlan,
        events: EventQueue,
        meters: Meters,
        *,
        draws: Draws,
        store: FleetStore,
        weights: FleetWeights,
        on_gradient: Gradient,
    ) -> None:
        """``on_gradient`` is called at every loss."""
        self._plan = plan
        self._limits = plan.staleness()
        self._events = events
        self._meters = meters
        self._draws = draws
        self._store = store
        self._weights = weights
        self._speed = plan.learner_speed()
        self._each_s = plan.learn_each_s * plan.batch_size
        self._life = 0
        self._judged: tuple[JudgedTrajectory, ...] = ()
        self._is_training = False
        self._uncommitted = False
        self._opens_from: PolicyVersion | None = None
        self._is_opening = False
        self.checkpoints: list[PolicyVersion] = []
        self.head = PolicyVersion(lineage=lineage_to_open(None, token="0").name, step=0)
        self.tree = LineageTree()
        self.alive = False
        self.dirty = False
        self.skew_s = 0.0
        self.slowdown = 1.0
        self.lag_mean = 0.0
        self._on_gradient = on_gradient

    def start(self, *, checkpoints_back: int = 0) -> None:
        """Start, or restore the checkpoint ``checkpoints_back`` before the newest; waits for the store."""
        self.alive = self.dirty = self._is_opening = True
        if self.checkpoints:
            del self.checkpoints[max(1, len(self.checkpoints) - checkpoints_back) :]
            self._opens_from = self.checkpoints[-1]

    def stop(self) -> None:
        """It fails: its update is lost; the lease stays until the next lineage opens."""
        self.alive = False
        self._life += 1
        self._set_training(is_training=False)
        self._uncommitted = False

    def turn(self) -> None:
        """Open a lineage, commit, lease and train, as far as the store allows."""
        self.dirty = False
        if not (self.alive and self._store.alive):
            return
        if self._is_opening:
            self._open()
        if self._uncommitted:
            self._commit()
        while not self._is_training and not self._uncommitted:
            batch = self._store.lease(self.head, self.tree)
            if not batch or self._train(batch):
                return

    @property
    def num_held(self) -> int:
        """Batches that it holds."""
        return int(self._is_training or self._uncommitted)

    def _open(self) -> None:
        self._is_opening = False
        lineage = lineage_to_open(self._opens_from, token=str(self._life))
        self.tree = self.tree.add(lineage)
        self.head = PolicyVersion(lineage=lineage.name, step=lineage.fork_step)
        self._store.open_lineage(lineage, self.tree)
        if not self.checkpoints:
            self.checkpoints.append(self.head)
        self._weights.publish(self.head, self.tree)

    def _train(self, batch: tuple[Candidate, ...]) -> bool:
        """Check the batch and start; False when it was released instead."""
        trajectories = [
            Trajectory(
                trajectory_id=candidate.trajectory_id,
                run_id=RUN,
                task_id=task_of(candidate.trajectory_id),
                group_id=candidate.group_id,
                group_size=candidate.group_size,
                spans=candidate.spans,
                tensors={},
                num_steps=1,
                started_at_s=candidate.started_at_s,
            )
            for candidate in batch
        ]
        now_s = max(self._events.now_s + self.skew_s, self._store.now_s())
        checked = recheck(
            trajectories,
            [now_s - candidate.started_at_s for candidate in batch],
            version=self.head,
            tree=self.tree,
            limits=self._limits,
        )
        if isinstance(checked, OutdatedBatch):
            self._store.release(checked.outdated)
            return False
        self._on_gradient(self.head, batch)
        self._judged = checked.judged
        self._set_training(is_training=True)
        seconds = (next(self._draws) + self._each_s) * self.slowdown / self._speed
        self._events.after(seconds, self._trained, self._life)
        return True

    def _trained(self, life: int) -> None:
        if life != self._life:  # it failed meanwhile
            return
        self._set_training(is_training=False)
        self._uncommitted = self.dirty = True
        if self._store.alive:
            self._commit()

    def _commit(self) -> None:
        self._uncommitted = False
        self._store.commit(self.head)
        self.lag_mean = sum(item.verdict.lag for item in self._judged) / max(1, len(self._judged))
        self._meters.note_trained((item.verdict.lag for item in self._judged), count=len(self._judged))
        self.head = next_version(self.head)
        if self.head.step % self._plan.checkpoint_every == 0:
            self.checkpoints.append(self.head)
            del self.checkpoints[:-CHECKPOINTS_KEPT]
            self._store.note_checkpoints(self.head, self.checkpoints[0], self.tree)
        self._store.head = self.head
        self._store.expire()
        self._weights.publish(self.head, self.tree)

    def _set_training(self, *, is_training: bool) -> None:
        self._meters.advance()
        self._is_training = self._meters.learning = is_training
