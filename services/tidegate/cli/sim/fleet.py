"""The fleet that the options of ``tidegate sim`` describe."""

from tidegate.cli.durations import read_durations
from tidegate.cli.sim.options import FleetOptions
from tidegate.fleet.plan import FleetPlan


def plan_of(options: FleetOptions, *, seed: int) -> FleetPlan:
    """The plan of a fleet, without its mode.

    Raises:
        ConfigError: a text is no distribution of durations.
    """
    return FleetPlan(
        actors=options.actors or 1,
        rollout=read_durations(options.rollout, option="--rollout"),
        learn=read_durations(options.learn, option="--learn"),
        learn_each_s=options.learn_each,
        max_age_s=options.max_age,
        max_running=options.max_running,
        admission=options.admission,
        pacing=options.pacing,
        group_size=options.group,
        samples_per_trajectory=options.samples,
        replicas=options.replicas,
        environments=options.environments,
        score=read_durations(options.score, option="--score"),
        announce_s=options.announce,
        pull_s=options.pull,
        fan_out=options.fan_out,
        hop_s=options.hop,
        seed=seed,
    )
