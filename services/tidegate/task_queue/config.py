"""The ``task_queue`` section of a run file."""

from typing import Annotated, get_args

import msgspec

from tidegate.core.curriculum import BuiltIn
from tidegate.runtime.own_code.references import OwnReference, resolve

CURRICULA: tuple[str, ...] = get_args(BuiltIn)
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]


class TaskQueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How work is chosen, published and dropped.

    ``curriculum``: ``uniform`` reads the dataset in shuffled epochs; ``learnable`` prefers bins that neither always
    succeed nor always fail. Or one of your own, which weighs bins: ``my_curriculum.py:Hardest``, a module with a name,
    or a name that an installed package registered (``tidegate.curricula``); while it fails, ``learnable`` chooses.
    ``curriculum_deadline_s`` (seconds): for one answer of a curriculum of your own; one that is late is ended.
    ``curriculum_start_deadline_s`` (seconds): in which its code must load.
    ``evaluation_every_versions`` (versions, 0 turns it off): how often a version is evaluated: on held-out problems
    (text), or on whole episodes played greedily (segments). At most one evaluation is in flight, and it occupies one
    actor: a version that is due meanwhile is skipped, and below about 5 it takes a visible share of the rollouts.
    ``task_deadline_s`` (seconds): a task that was delivered this long ago and whose trajectories never reached the
    store is dropped as failed. Below the longest rollout plus ten redeliveries (100 s) it drops live work; far
    above it, a lost task holds its share of the budget for that long, and at max_lag 0 the whole run with it. Work
    that waits longer than staleness.max_age_s, such as for an environment that is away, would expire anyway.
    ``sweep_period_s`` (seconds): how often the sweep searches for lost tasks.
    ``publish_concurrency`` (messages): publishes awaiting their ack at once; the burst is over when the broker acked
    them all. At 1 a batch costs a broker round trip a task.
    ``publish_deadline_s`` (seconds): after this a publish counts as unknown and is repeated with the same id. Above
    the drain timeout a drain cuts it off, which is safe but logged.
    ``outcomes_limit`` (outcomes): most outcomes taken in one transaction; below a batch size one commit needs several
    polls before the next admission.
    ``outcomes_wait_s`` (seconds): length of one long poll at the store; an outcome ends it early.
    ``limits_refresh_s`` (seconds): how often CONTROL is read again, in case the subscription missed a change.
    ``retry_backoff_s`` (seconds): pause after a failed call to the store or the broker.
    ``rows_kept_max`` (trajectories): those that the journal keeps a row of, 25 bytes each in groups of 8 and 100 bytes
    each of segments. Beyond it the oldest are packed once they ended, into less than half a byte each
    (docs/decisions/0017). A restore that revives packed trajectories unpacks them and their neighbours, 8,192 in 30 ms:
    set it above what is trained between two checkpoints.
    """

    curriculum: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = "uniform"
    curriculum_deadline_s: Annotated[float, msgspec.Meta(ge=0.05, le=600.0)] = 5.0
    curriculum_start_deadline_s: Seconds = 60.0
    evaluation_every_versions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    task_deadline_s: Seconds = 300.0
    sweep_period_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 2.0
    publish_concurrency: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    publish_deadline_s: Annotated[float, msgspec.Meta(ge=0.5, le=60.0)] = 5.0
    outcomes_limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 4096
    outcomes_wait_s: Annotated[float, msgspec.Meta(ge=0.1, le=30.0)] = 5.0
    limits_refresh_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 2.0
    retry_backoff_s: Annotated[float, msgspec.Meta(ge=0.01, le=10.0)] = 0.25
    rows_kept_max: Annotated[int, msgspec.Meta(ge=1000)] = 1_000_000

    def own_curriculum(self, *, folder: str) -> OwnReference | None:
        """The code of a curriculum of one's own; None for one of this package. ``folder``: of the run file.

        Raises:
            ConfigError: there is no such code.
        """
        if self.curriculum in CURRICULA:
            return None
        return resolve(self.curriculum, kind="curricula", folder=folder, known=CURRICULA)
