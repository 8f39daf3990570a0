"""The actor's settings of Q-learning beside the store's and the learner's.

First priorities mean what later ones do, and sequences begin where a state is stored.
"""

from typing import Any

from tidegate.algorithms.q_learning_settings import QActingSettings, QLearningSettings
from tidegate.core.errors import ConfigError
from tidegate.launch.run_plan import RunFile
from tidegate.trajectory_store.config import ReplayConfig


def check_q_learning(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first setting that the actor of a Q-network has otherwise than who reads it, or None."""
    if not file.policy.family.startswith("q_"):
        return None
    acting = services["actor"].q_learning
    replay, trained = services["trajectory_store"].replay, services["learner"].q_learning
    if replay.unit == "sequence":
        return _check_sequences(file, acting=acting, replay=replay, trained=trained)
    return _first_difference(
        acting,
        ("n_steps", "trajectory_store.replay", replay.n_steps),
        ("discount", "learner.q_learning", trained.discount),
        ("value_rescaling", "learner.q_learning", trained.value_rescaling),
    )


def _check_sequences(
    file: RunFile, *, acting: QActingSettings, replay: ReplayConfig, trained: QLearningSettings
) -> ConfigError | None:
    period, length, burn_in = replay.sequence_period, replay.sequence_length, trained.sequences.burn_in
    if acting.sequence_period != period:
        return ConfigError(
            f"actor.q_learning.sequence_period is {acting.sequence_period}, and"
            f" trajectory_store.replay.sequence_period is {period}",
            why="sequences begin where actors store a state",
            fix=f"set actor.q_learning.sequence_period to {period}",
        )
    num_steps = file.workload.unroll_length
    if period and num_steps % period:
        return ConfigError(
            f"workload.unroll_length {num_steps} is no multiple of trajectory_store.replay.sequence_period {period}",
            why="the steps between two stored states are the same from segment to segment",
            fix=f"set trajectory_store.replay.sequence_period to a divisor of {num_steps}",
        )
    between = period or num_steps
    if burn_in + between > length:
        return ConfigError(
            f"learner.q_learning.sequences.burn_in {burn_in} leaves {max(0, length - burn_in)} steps of"
            f" trajectory_store.replay.sequence_length {length} to train, and sequences begin {between} steps apart",
            why="the steps between would never be trained",
            fix=f"set trajectory_store.replay.sequence_length to {burn_in + between} or more",
        )
    sequences = trained.sequences
    return _first_difference(
        acting,
        ("sequence_length", "trajectory_store.replay", length),
        ("burn_in", "learner.q_learning.sequences", burn_in),
        ("n_steps", "learner.q_learning.sequences", sequences.n_steps),
        ("priority_max_share", "learner.q_learning.sequences", sequences.priority_max_share),
        ("discount", "learner.q_learning", trained.discount),
        ("value_rescaling", "learner.q_learning", trained.value_rescaling),
    )


def _first_difference(acting: QActingSettings, *expected: tuple[str, str, float]) -> ConfigError | None:
    """``expected``: name, section and value of what the actor's setting repeats."""
    for name, section, wanted in expected:
        found = getattr(acting, name)
        if found != wanted:
            return ConfigError(
                f"actor.q_learning.{name} is {found}, and {section}.{name} is {wanted}",
                why="first priorities would have another scale than those that the learner returns",
                fix=f"set actor.q_learning.{name} to {wanted}",
            )
    return None
