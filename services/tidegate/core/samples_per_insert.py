"""The pace of replay: how many samples the learner draws for each unit that actors insert.

With ``owed = samples_per_insert * inserted - sampled`` and the middle ``samples_per_insert * min_fill``:

- an insert waits while it would put ``owed`` above the middle plus ``slack``: actors wait for the learner;
- a sample waits until ``min_fill`` units were inserted, until there is enough to draw, and while it would put ``owed``
  below the middle minus ``slack``: the learner waits for actors.

Both may never wait for each other. ``needed_slack`` is the width at which that follows from the two rules, and
``check_pace`` refuses what is narrower, before a run starts. An insert also never waits while there is too little to
draw: units that were evicted before their use leave ``owed`` behind that no unit can pay. Counts are units of sampling
(transitions or sequences). The rule is Reverb's (Cassirer et al. 2021, section 3.4), with that difference.
"""

import math
from typing import Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError


class ReplayPace(msgspec.Struct, frozen=True):
    """The limits. ``samples_per_insert`` 0: neither side waits for the other, only for ``min_fill``.

    ``min_fill``: units inserted before the first sample. ``slack``: samples that either side may be ahead of the ratio.
    ``batch_size``: units of one sample.
    """

    samples_per_insert: float
    min_fill: int
    slack: float
    batch_size: int

    def middle(self) -> float:
        """What is owed when both sides are even."""
        return self.samples_per_insert * self.min_fill


class ReplayFlow(msgspec.Struct, frozen=True):
    """Units inserted and sampled since the run began, and how many samples could be drawn now."""

    inserted: int
    sampled: int
    drawable: float


class MayProceed(msgspec.Struct, frozen=True):
    """It may happen now."""


class WaitFor(msgspec.Struct, frozen=True):
    """It must wait; ``waits_for`` is the side that has to act first."""

    waits_for: Literal["actors", "learner"]
    reason: str


PaceDecision: TypeAlias = MayProceed | WaitFor
MAY_PROCEED = MayProceed()


def owed(pace: ReplayPace, flow: ReplayFlow) -> float:
    """Samples that the units inserted so far ask for and that were not drawn yet."""
    return pace.samples_per_insert * flow.inserted - flow.sampled


def decide_insert(pace: ReplayPace, flow: ReplayFlow, *, count: int) -> PaceDecision:
    """Whether ``count`` more units may be inserted."""
    if pace.samples_per_insert == 0.0 or flow.drawable < pace.batch_size:
        return MAY_PROCEED
    after = owed(pace, flow) + pace.samples_per_insert * count
    if after <= pace.middle() + pace.slack:
        return MAY_PROCEED
    return WaitFor(
        "learner",
        f"{flow.sampled:,} samples were drawn of {flow.inserted:,} inserted units, fewer than"
        f" {pace.samples_per_insert:g} for each",
    )


def decide_sample(pace: ReplayPace, flow: ReplayFlow, *, count: int) -> PaceDecision:
    """Whether a batch of ``count`` units may be drawn."""
    if flow.inserted < pace.min_fill:
        return WaitFor(
            "actors", f"{flow.inserted:,} of {pace.min_fill:,} units are there that min_fill asks for"
        )
    if flow.drawable < count:
        return WaitFor("actors", f"{flow.drawable:,.0f} samples can be drawn, a batch has {count:,}")
    if pace.samples_per_insert and owed(pace, flow) - count < pace.middle() - pace.slack:
        return WaitFor(
            "actors",
            f"{flow.sampled:,} samples were drawn of {flow.inserted:,} inserted units, already"
            f" {pace.samples_per_insert:g} for each",
        )
    return MAY_PROCEED


def needed_slack(samples_per_insert: float, *, batch_size: int, insert_units: int) -> float:
    """The smallest slack with which not both sides can wait; ``insert_units``: the most units of one insert.

    A sample that waits for the ratio leaves ``owed`` below ``middle - slack + batch_size``, where an insert must fit
    below ``middle + slack``; and before ``min_fill`` is reached an insert must fit as well.
    """
    insert = samples_per_insert * insert_units
    return max(insert, (batch_size + insert) / 2.0)


def check_pace(
    pace: ReplayPace, *, insert_units: int, capacity: int, uses_max: int, in_flight_max: int
) -> ConfigError | None:
    """The first reason why this pace could stand still for ever, or None.

    ``insert_units``: the most units one trajectory brings. ``capacity``: units the buffer holds. ``uses_max``: as in
    ``ReplayConfig``, 0 is unlimited. ``in_flight_max``: trajectories that may be admitted and never used.
    """
    prefix = "trajectory_store.replay"
    if pace.min_fill + insert_units > capacity:
        return ConfigError(
            f"{prefix}.min_fill {pace.min_fill} leaves no room for a trajectory of {insert_units} units in"
            f" {prefix}.capacity {capacity}",
            why="units would be evicted before the first sample, and the learner would wait for ever",
            fix=f"set {prefix}.capacity to {pace.min_fill + insert_units} or more, or lower min_fill",
        )
    if uses_max and capacity * uses_max < pace.batch_size:
        return ConfigError(
            f"batch_size {pace.batch_size} is more than {prefix}.capacity {capacity} can give",
            why=f"uses_max {uses_max} bounds the samples of each unit",
            fix=f"lower batch_size, or raise {prefix}.capacity or {prefix}.uses_max",
        )
    if uses_max and pace.samples_per_insert > uses_max:
        return ConfigError(
            f"{prefix}.samples_per_insert {pace.samples_per_insert:g} is above {prefix}.uses_max {uses_max}",
            why="no unit may be used as often as its insert asks for, so actors would wait for samples that cannot be",
            fix=f"lower samples_per_insert to {uses_max}, or raise uses_max (0 is unlimited)",
        )
    slack = needed_slack(pace.samples_per_insert, batch_size=pace.batch_size, insert_units=insert_units)
    if pace.samples_per_insert and pace.slack < slack:
        return ConfigError(
            f"{prefix}.slack {pace.slack:g} is too narrow for trajectories of {insert_units} units and batch_size"
            f" {pace.batch_size}",
            why="actors would wait for the learner while it waits for them",
            fix=f"set {prefix}.slack to {math.ceil(slack)} or more, or to 0 to compute it",
        )
    needed = math.ceil(pace.min_fill / insert_units)
    if needed > in_flight_max:
        return ConfigError(
            f"{prefix}.min_fill {pace.min_fill} needs {needed} trajectories that were never used, and only"
            f" {in_flight_max} may be in flight",
            why="admission stops at (staleness.max_lag + 1) * batch_size, and the learner would wait for ever",
            fix=f"lower {prefix}.min_fill, or raise staleness.max_lag",
        )
    return None
