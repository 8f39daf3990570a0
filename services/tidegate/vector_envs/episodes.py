"""Whole episodes under a greedy policy: what an evaluation measures and ``tidegate play`` shows.

Each copy plays one episode, from a seeded reset to its first end, and the call waits for all of them. Counting the
episodes that end first would count more short ones than there are.

Shapes: N copies.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.models.policy_port import MemoryPolicy, PolicyRunner, SegmentPolicy
from tidegate.vector_envs.observations import recorded_observations

# Keeps the seeds of episodes that are only watched apart from those of a run's segments.
SEEDS_OF_EPISODES = 1


# Called before each step with the copies whose episode still runs, and the observations by name; what it raises ends
# the play.
BeforeStep: TypeAlias = Callable[[NDArray[np.bool_], Mapping[str, Array]], None]


class PlayedEpisode(msgspec.Struct, frozen=True):
    """One episode: its undiscounted return, as the environment gives rewards, and its length in steps.

    ``was_cut``: it reached ``steps_max`` and was still running. ``failed``: the environment failed in it, so that its
    return is unknown; it counts for nothing.
    """

    episode_return: float
    length: int
    was_cut: bool = False
    failed: bool = False


def play_episodes(
    envs: Any,
    policy: SegmentPolicy,
    params: Mapping[str, Array],
    *,
    num_episodes: int,
    seed: int,
    steps_max: int,
    before_step: BeforeStep,
) -> list[PlayedEpisode]:
    """Play ``num_episodes`` by the greedy actions of one version, one in each copy, in as many rounds as that takes.

    The resets of a round are drawn from ``seed`` and its number, so that two policies start in the same states.

    ``envs``: from ``open_vector_env``. ``steps_max``: steps after which an episode is cut.

    Raises:
        TidegateError: the environment cannot be used, or keeps failing.
    """
    run = None if isinstance(policy, MemoryPolicy) else policy.runner(params)
    episodes: list[PlayedEpisode] = []
    for number in itertools.count():
        round_seed = int(np.random.SeedSequence([seed, SEEDS_OF_EPISODES, number]).generate_state(1)[0] >> 1)
        episodes += _play_round(
            envs,
            policy,
            run or _from_empty_memory(policy, params),
            seed=round_seed,
            steps_max=steps_max,
            before_step=before_step,
        )
        if len(episodes) >= num_episodes:
            break
    return episodes[:num_episodes]


def _from_empty_memory(policy: SegmentPolicy, params: Mapping[str, Array]) -> PolicyRunner:
    """A runner for one round: a copy plays one episode in it, so that its state begins empty and is never emptied."""
    assert isinstance(policy, MemoryPolicy), "policies without memory have a runner for all rounds"
    step = policy.stepper(params)
    memory_NM: Array | None = None

    def run(observations: Mapping[str, Array]) -> NDArray[np.float32]:
        nonlocal memory_NM
        if memory_NM is None:
            num_envs = len(next(iter(observations.values())))
            memory_NM = np.zeros((num_envs, policy.memory_size), np.float32)
        outputs_NP, memory_NM = step(observations, memory_NM)
        return outputs_NP

    return run


def _play_round(
    envs: Any,
    policy: SegmentPolicy,
    run: PolicyRunner,
    *,
    seed: int,
    steps_max: int,
    before_step: BeforeStep,
) -> list[PlayedEpisode]:
    """The first episode of each copy after a reset."""
    space, distribution = policy.description.observation_space, policy.actions
    guarded = envs.unwrapped
    seen, _ = envs.reset(seed=seed)
    failed_N: NDArray[np.bool_] = guarded.faulted_N.copy()
    running_N: NDArray[np.bool_] = ~failed_N
    returns_N = np.zeros(len(running_N))
    lengths_N = np.zeros(len(running_N), np.int64)
    for _ in range(steps_max):
        if not running_N.any():
            break
        observations = recorded_observations(space, seen)
        before_step(running_N, observations)
        outputs_NP = run(observations)
        actions = distribution.environment_actions(distribution.mode(outputs_NP))
        seen, rewards_N, terminated_N, truncated_N, _ = envs.step(actions)
        failed_N |= running_N & guarded.faulted_N
        running_N &= ~failed_N
        returns_N[running_N] += rewards_N[running_N]
        lengths_N[running_N] += 1
        running_N &= ~(terminated_N | truncated_N)
    return [
        PlayedEpisode(
            float(returns_N[copy]), int(lengths_N[copy]), bool(running_N[copy]), bool(failed_N[copy])
        )
        for copy in range(len(running_N))
    ]


class ReturnSummary(msgspec.Struct, frozen=True):
    """Returns of ``num_episodes`` episodes. ``std_return``: over episodes; 0 of a single one.

    ``num_cut`` are counted with what they had reached; ``num_failed`` are not counted.
    """

    mean_return: float
    std_return: float
    min_return: float
    max_return: float
    mean_length: float
    num_episodes: int
    num_cut: int
    num_failed: int


def summarise_returns(episodes: Sequence[PlayedEpisode]) -> ReturnSummary | None:
    """Their returns in a few numbers; None when every episode failed."""
    whole = [episode for episode in episodes if not episode.failed]
    if not whole:
        return None
    returns = np.array([episode.episode_return for episode in whole])
    return ReturnSummary(
        mean_return=float(returns.mean()),
        std_return=float(returns.std()),
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(np.mean([episode.length for episode in whole])),
        num_episodes=len(whole),
        num_cut=sum(episode.was_cut for episode in whole),
        num_failed=len(episodes) - len(whole),
    )
