"""What an update trained of each environment, where a run has several."""

from collections.abc import Sequence

from tidegate.core.records import Trajectory


def by_environment(trajectories: Sequence[Trajectory], envs: Sequence[str]) -> dict[str, float]:
    """Metrics of a step: the share of its trajectories of each of ``envs``, and their mean reward.

    An environment without a trajectory in this step has the share 0 and no reward.
    """
    found: dict[str, float] = {}
    for env in envs:
        of_env = [each for each in trajectories if each.env_id == env]
        found[f"share.{env}"] = len(of_env) / len(trajectories) if trajectories else 0.0
        rewards = [each.reward for each in of_env if each.reward is not None]
        if rewards:
            found[f"reward.{env}"] = sum(rewards) / len(rewards)
    return found
