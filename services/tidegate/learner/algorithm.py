"""The one table of algorithms: what trains which policies, from records of which engines.

A new algorithm is a trainer in ``learner.optim``, a line in its registry, and a line here. Trainers load torch; this
table does not, so that a run file is checked before anything starts.
"""

from typing import Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError

AlgorithmName: TypeAlias = Literal[
    "actor_critic", "applied_gradients", "language_model", "q_learning", "r2d2", "sac"
]
ReplayUnit: TypeAlias = Literal["none", "transition", "sequence"]


class AlgorithmEntry(msgspec.Struct, frozen=True):
    """``policies``: the kinds that it trains.

    ``engine``: the actor's engine whose records it needs; empty for those that send segments or completions.
    ``replay``: what it draws from the trajectory store's replay; ``none`` for whole trajectories, each once.
    ``memory``: whether it trains policies with memory (``policy.memory``), or nothing else.
    """

    policies: tuple[str, ...]
    engine: str = ""
    replay: ReplayUnit = "none"
    memory: Literal["never", "optional", "always"] = "never"


# `auto` takes the first that trains the policy.
ALGORITHMS: dict[AlgorithmName, AlgorithmEntry] = {
    "actor_critic": AlgorithmEntry(("mlp", "cnn", "own"), memory="optional"),
    "applied_gradients": AlgorithmEntry(("mlp",), engine="gradient_env"),
    "language_model": AlgorithmEntry(("char_lm", "transformers")),
    "q_learning": AlgorithmEntry(("q_mlp", "q_cnn", "q_own"), replay="transition"),
    "r2d2": AlgorithmEntry(("q_mlp", "q_cnn", "q_own"), replay="sequence", memory="always"),
    "sac": AlgorithmEntry(("squashed_mlp", "squashed_cnn", "own"), replay="transition"),
}


def find_algorithm(
    name: AlgorithmName | Literal["auto"], *, policy_kind: str
) -> tuple[AlgorithmName, AlgorithmEntry]:
    """The named algorithm, or the first one for this kind of policy: ``PolicyConfig.family``.

    Raises:
        ConfigError: it, or none, trains such a policy.
    """
    for known, entry in ALGORITHMS.items():
        if name in ("auto", known) and policy_kind in entry.policies:
            return known, entry
    entries = ALGORITHMS if name == "auto" else {name: ALGORITHMS[name]}
    raise ConfigError(
        f"learner.algorithm {name} cannot train a policy of the kind {policy_kind}",
        why="; ".join(f"{known} trains {', '.join(entry.policies)}" for known, entry in entries.items()),
        fix="set learner.algorithm to auto, or policy.kind to one of these",
    )


def check_engine(algorithm: AlgorithmName, *, engine: str) -> ConfigError | None:
    """Why the actor's engine sends records that the algorithm cannot train on; None when it can."""
    needed = ALGORITHMS[algorithm].engine
    sends_to = {entry.engine: name for name, entry in ALGORITHMS.items() if entry.engine}
    if needed and engine != needed:
        return ConfigError(
            f"learner.algorithm {algorithm} needs actor.engine {needed}, and it is {engine}",
            fix=f"set actor.engine to {needed}",
        )
    if not needed and engine in sends_to:
        return ConfigError(
            f"actor.engine {engine} needs learner.algorithm {sends_to[engine]}, and it is {algorithm}",
            fix=f"set learner.algorithm to {sends_to[engine]}",
        )
    return None


def check_replay(algorithm: AlgorithmName, *, unit: ReplayUnit) -> ConfigError | None:
    """Why the algorithm cannot train on what the trajectory store gives out; None when it can."""
    needed = ALGORITHMS[algorithm].replay
    if unit == needed:
        return None
    if needed == "none":
        trained_on = [
            f"set learner.algorithm to {name}" for name, entry in ALGORITHMS.items() if entry.replay == unit
        ]
        return ConfigError(
            f"trajectory_store.replay.unit is {unit}, and learner.algorithm {algorithm} trains whole trajectories",
            fix=" or ".join([*trained_on, "remove trajectory_store.replay"]),
        )
    return ConfigError(
        f"learner.algorithm {algorithm} trains on units of replay, and trajectory_store.replay.unit is {unit}",
        fix=f"set trajectory_store.replay.unit to {needed}",
    )


def check_memory(algorithm: AlgorithmName, *, memory: str, policy_kind: str) -> ConfigError | None:
    """Why the algorithm cannot train a policy with or without this memory; None when it can.

    ``memory``: ``policy.memory``.
    """
    wanted = ALGORITHMS[algorithm].memory
    has_memory = memory != "none"
    if has_memory and wanted == "never":
        return ConfigError(
            f"policy.memory {memory} is set with policy.kind {policy_kind} and learner.algorithm {algorithm}",
            why="only a learner of segments or of sequences unrolls a recurrent cell",
            fix="remove policy.memory, or set policy.kind to mlp or cnn and learner.algorithm to auto, or policy.kind"
            " to q_mlp or q_cnn and learner.algorithm to r2d2",
        )
    if not has_memory and wanted == "always":
        return ConfigError(
            f"learner.algorithm {algorithm} trains policies with memory, and policy.memory is none",
            fix="set policy.memory to gru or lstm, or learner.algorithm to auto",
        )
    return None
