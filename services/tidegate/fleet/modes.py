"""Synchronous and asynchronous training as plans: one dial, ``max_lag`` (I8)."""

from math import ceil

import msgspec

from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import Mode

# The default budget of a run file.
MAX_LAG = 4


def in_mode(plan: FleetPlan, mode: Mode, *, batch_size: int | None, max_lag: int | None) -> FleetPlan:
    """``plan`` as synchronous or asynchronous training; None takes the mode's own.

    Synchronous is ``max_lag`` 0 and, by default a batch of one rollout of each actor: all roll out, all
    wait for the last one and for the update. Asynchronous is a batch of one task, and a budget in which every actor
    is busy and as many rollouts wait for the learner. Without admission there is no budget unless one was named.
    """
    if mode == "sync":
        batch = batch_size or plan.actors * plan.group_size
        return msgspec.structs.replace(plan, batch_size=batch, max_lag=0)
    batch = batch_size or plan.group_size
    budget = max_lag
    if budget is None and plan.admission:
        budget = max(MAX_LAG, ceil(2 * plan.actors * plan.group_size / batch))
    return msgspec.structs.replace(plan, batch_size=batch, max_lag=budget)
