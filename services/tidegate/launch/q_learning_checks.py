"""First priorities mean what later ones do: the actor's settings of Q-learning beside the store's and the learner's."""

from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.launch.run_plan import RunFile


def check_q_learning(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first setting that the actor of a Q-network has otherwise than who computes later priorities, or None."""
    if not file.policy.kind.startswith("q_"):
        return None
    acting = services["actor"].q_learning
    replay, trained = services["trajectory_store"].replay, services["learner"].q_learning
    expected = (
        ("n_steps", "trajectory_store.replay", replay.n_steps),
        ("discount", "learner.q_learning", trained.discount),
        ("value_rescaling", "learner.q_learning", trained.value_rescaling),
    )
    for name, section, wanted in expected:
        found = getattr(acting, name)
        if found != wanted:
            return ConfigError(
                f"actor.q_learning.{name} is {found}, and {section}.{name} is {wanted}",
                why="first priorities would have another scale than those that the learner returns",
                fix=f"set actor.q_learning.{name} to {wanted}",
            )
    return None
