"""Acting by a Q-network: every environment copy explores at a rate of its own, and segments carry first priorities.

Shapes: S observations of a segment, N environments, A actions.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tidegate.actor.engines.acting import Actions, GivesOutputs
from tidegate.actor.engines.registry import EngineSetting
from tidegate.algorithms.first_priorities import first_priorities, first_sequence_priorities
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.algorithms.reward_scale import RewardSettings
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Task
from tidegate.core.spaces import MEMORY, PRIORITIES
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policy_port import SegmentPolicy


def exploration_rates(
    num_envs: int, settings: QActingSettings, rng: np.random.Generator
) -> NDArray[np.float32]:
    """ε of each environment copy, (N,), from the largest to the smallest.

    Copy i has a place of its own in [i, i + 1) / N, drawn once for all: over many segments all rates occur, as on a
    ladder over all copies of all actors, and from segment to segment a copy's own rate hardly changes.

    Source: Horgan 2018, section 4.1, whose places are i / (N − 1) over all actors.
    """
    places_N = (np.arange(num_envs) + rng.random()) / num_envs
    return (settings.epsilon ** (1.0 + settings.epsilon_exponent * places_N)).astype(np.float32)


class QActing:
    """``engines.acting.Acting`` with exploration, by the newest Q-network."""

    def __init__(
        self,
        network: GivesOutputs,
        actions: EpsilonGreedy,
        settings: QActingSettings,
        *,
        reward: RewardSettings,
        num_envs: int,
    ) -> None:
        """``network``: in this process, or the inference service. ``actions``: its own.

        ``reward``: what the learner makes of rewards.
        """
        self._network = network
        self._actions = actions
        self._settings = settings
        self._reward = reward
        self._num_envs = num_envs
        # As many as the segment has steps, freed when the next one begins; states of a policy with memory alone.
        self._values: list[Array] = []
        self._states: list[Array] = []

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """See ``Acting``."""
        self._network.check_policy(snapshot)

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acting``."""
        self._values = []
        self._states = []
        # Another stream than those of the segment's actions and of the first reset.
        rates_N = exploration_rates(self._num_envs, self._settings, np.random.default_rng([task.seed, 2]))
        self._actions = self._actions.with_epsilons(rates_N)
        return self._network.begin(task)

    def act(
        self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator
    ) -> Actions | None:
        """See ``Acting``; it ends a segment where the network does."""
        outputs = self._network.outputs(observations, memory_NM)
        if outputs is None:
            return None
        self._values.append(outputs.outputs)
        if memory_NM.shape[1]:
            self._states.append(memory_NM)
        actions, logprobs_N = self._actions.sample(outputs.outputs, rng)
        return Actions(actions, logprobs_N, outputs.memory, outputs.version)

    def further_tensors(
        self, observations: Mapping[str, Array], memory_NM: Array, segment: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """See ``Acting``: first priorities, which need the values of the last observations too, and stored states."""
        last = self._network.outputs(observations, memory_NM)
        if last is None:
            return None
        settings = self._settings
        errors_TN = first_priorities(np.stack([*self._values, last.outputs]), segment, settings, self._reward)
        if not self._states:
            return {PRIORITIES: errors_TN}
        states_TNM = np.stack(self._states)
        return {
            MEMORY: states_TNM[:: settings.sequence_period or len(states_TNM)],
            PRIORITIES: first_sequence_priorities(errors_TN, states_TNM, segment, settings),
        }


def q_acting(network: GivesOutputs, policy: SegmentPolicy, setting: EngineSetting) -> QActing | None:
    """Acting with exploration for a Q-network; None for another policy."""
    if not isinstance(policy.actions, EpsilonGreedy):
        return None
    workload = setting.workload
    return QActing(
        network, policy.actions, setting.q_learning, reward=workload.reward, num_envs=workload.num_envs
    )
