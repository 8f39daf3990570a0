"""Acts for several actors by one call of the network.

Shapes: N environments of one actor, B of all of them, P outputs of the action distribution, M numbers of state.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.inference.state import CheckedStep
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policy_port import StepPolicy, VersionRunner
from tidegate.models.version_runner import check_snapshot, version_runner
from tidegate.wire.vector_step import ActedStep


class PreparedVersion(msgspec.Struct, frozen=True, eq=False):
    """A version that can act."""

    version: PolicyVersion
    run: VersionRunner


class ServedVersion(msgspec.Struct, frozen=True, eq=False):
    """The version that acts, and the lineages that came with it."""

    prepared: PreparedVersion
    tree: LineageTree


def prepare(policy: StepPolicy, snapshot: PolicySnapshot, *, threads: int) -> PreparedVersion:
    """Check a version and prepare it.

    Raises:
        RecordError: its tensors are not this network's parameters, or are not finite.
        NotFoundError: the policy has images, and onnxruntime is not installed.
    """
    check_snapshot(policy, snapshot)
    return PreparedVersion(snapshot.version, version_runner(policy, snapshot.tensors, threads=threads))


def act_together(
    policy: StepPolicy, prepared: PreparedVersion, steps: Sequence[CheckedStep]
) -> list[ActedStep]:
    """The answers to steps, in order. Actions are drawn from a step's own seed, or by an actor that explores."""
    explored = isinstance(policy.actions, EpsilonGreedy)
    none_drawn = np.empty((0, *policy.actions.action_shape), policy.actions.action_dtype)
    names = steps[0].observations
    observations_B = {name: np.concatenate([step.observations[name] for step in steps]) for name in names}
    outputs_BP, memory_BM = prepared.run(observations_B, np.concatenate([step.memory for step in steps]))
    answers: list[ActedStep] = []
    start = 0
    for step in steps:
        rows = slice(start, start + len(step.memory))
        start = rows.stop
        if explored:
            outputs_NP = outputs_BP[rows]
            answer = ActedStep(
                step.number,
                prepared.version,
                none_drawn,
                np.empty(0, np.float32),
                memory_BM[rows],
                outputs_NP,
            )
            answers.append(answer)
            continue
        actions, logprobs_N = policy.actions.sample(outputs_BP[rows], np.random.default_rng(step.seed))
        answers.append(ActedStep(step.number, prepared.version, actions, logprobs_N, memory_BM[rows]))
    return answers
