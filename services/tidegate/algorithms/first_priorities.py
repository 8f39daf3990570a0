"""First priorities of replay, as actors compute them: by the values they acted by, before a learner sees the steps.

A unit's first priority is what the learner would make of it, its TD error under the network that acted: new experience
is then drawn as often as it is surprising, and not as often as all of it could be (Horgan 2018, section 3).

What follows a segment is not known yet, so windows of ``n_steps`` end with it. They do not end with a sequence, where
the learner's do.

Shapes: T steps, S = T + 1 observations, N environments, A actions, M numbers of state, Q sequences, L steps of each.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.algorithms.q_sequences import burn_ins, sequence_priorities, trained_steps
from tidegate.algorithms.q_targets import sequence_targets
from tidegate.algorithms.replay_units import sequence_starts, window_lengths
from tidegate.algorithms.reward_scale import RewardSettings, scaled_rewards
from tidegate.core.records import Array


def first_priorities(
    q_SNA: Array, segment: Mapping[str, Array], settings: QActingSettings, reward: RewardSettings
) -> NDArray[np.float32]:
    """The size of the TD error of each step, (T, N): the priority of a transition. 0 where ``segment`` has no step.

    ``q_SNA``: the values of all actions before each step and after the last, by the version that acted then.
    """
    rewards_TN = scaled_rewards(segment["rewards"], reward, np)
    terminated_TN, truncated_TN = segment["terminated"] != 0, segment["truncated"] != 0
    targets_TN = sequence_targets(
        rewards_TN,
        terminated_TN,
        terminated_TN | truncated_TN,
        q_SNA.max(axis=-1),
        np,
        n_steps=settings.n_steps,
        discount=settings.discount,
        rescale=settings.value_rescaling,
    )
    q_TN = np.take_along_axis(q_SNA[:-1], segment["actions"][..., None], axis=-1)[..., 0]
    return np.where(segment["valid"], np.abs(targets_TN - q_TN), 0.0).astype(np.float32)


def first_sequence_priorities(
    errors_TN: NDArray[np.float32], states_TNM: Array, segment: Mapping[str, Array], settings: QActingSettings
) -> NDArray[np.float32]:
    """The priority of each sequence at the step where it begins, (T, N); 0 where none does.

    ``errors_TN``: of ``first_priorities``. ``states_TNM``: the policy's, before each step. Of a sequence that reaches
    past the segment the known steps count; where these are all of its burn-in, they count instead of none.
    """
    found_TN = np.zeros_like(errors_TN)
    num_steps, length = len(errors_TN), settings.sequence_length
    starts_NT = sequence_starts(segment["valid"].T != 0, period=settings.sequence_period or num_steps)
    envs_Q, steps_Q = np.nonzero(starts_NT)
    if not len(steps_Q):
        return found_TN
    ended_TN = (segment["terminated"] != 0) | (segment["truncated"] != 0)
    places_QL = steps_Q[:, None] + np.arange(length)
    inside_QL = np.minimum(places_QL, num_steps - 1)
    # The segment's last step ends a window as an episode's does.
    lengths_Q = window_lengths(ended_TN[inside_QL, envs_Q[:, None]] | (places_QL == num_steps - 1))
    burn_ins_Q = burn_ins(states_TNM[steps_Q, envs_Q], burn_in=settings.burn_in)
    is_cut_Q = ~ended_TN[steps_Q + lengths_Q - 1, envs_Q]
    burn_ins_Q[is_cut_Q & (lengths_Q <= burn_ins_Q)] = 0
    found_TN[steps_Q, envs_Q] = sequence_priorities(
        errors_TN[inside_QL, envs_Q[:, None]],
        trained_steps(lengths_Q, burn_ins_Q, np.arange(length)),
        np,
        max_share=settings.priority_max_share,
    )
    return found_TN
