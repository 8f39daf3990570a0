"""Whole episodes under a greedy policy: which are counted, from which seeds, and how the call ends early."""

import math
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.vector_envs.scripted_envs import Script, ScriptedEnv
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.vector_envs.episodes import PlayedEpisode, play_episodes, summarise_returns
from tidegate.vector_envs.guarded import guard

LENGTH_MAX = 12
STEPS_MAX = 1_000


class Planned(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Episodes of the ``lengths`` in turn, or of drawn ones; the reward is the action."""

    def __init__(self, lengths: tuple[int, ...] = ()) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.lengths = lengths
        self.num_resets = 0
        self.steps_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        # One in two is short: counting those that end first would find mostly short ones.
        drawn = int(self.np_random.choice([1, LENGTH_MAX]))
        self.steps_left = self.lengths[self.num_resets % len(self.lengths)] if self.lengths else drawn
        self.num_resets += 1
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        return np.zeros(2, np.float32), float(action), self.steps_left == 0, False, {}


def policy() -> SegmentPolicy:
    description = EnvironmentDescription(
        env_id="planned:Env-v0",
        observation_space=BoxSpace((2,), "float32", (-math.inf,), (math.inf,)),
        action_space=DiscreteSpace(2),
    )
    return build_policy(description, PolicyConfig(kind="mlp", hidden=(4,)))


def params() -> dict[str, Array]:
    """Prefers action 1 a little, so that sampling would take action 0 often."""
    fresh = {
        name: np.zeros_like(value) for name, value in policy().init_params(np.random.default_rng(0)).items()
    }
    return fresh | {"policy.1.bias": np.array([0.0, 0.5], np.float32)}


def ignore(_running_N: NDArray[np.bool_], _observations: object) -> None:
    """Play on."""


def play(
    envs: Any, *, num_episodes: int, seed: int = 3, steps_max: int = STEPS_MAX, before_step: Any = ignore
) -> list[PlayedEpisode]:
    return play_episodes(
        envs,
        policy(),
        params(),
        num_episodes=num_episodes,
        seed=seed,
        steps_max=steps_max,
        before_step=before_step,
    )


def copies(*makers: Any) -> Any:
    return guard("planned:Env-v0", lambda: SyncVectorEnv(makers))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5))
def test_first_episode_of_every_copy_counts_once_however_short(lengths: list[list[int]]) -> None:
    envs = copies(*(partial(Planned, tuple(each)) for each in lengths))
    episodes = play(envs, num_episodes=len(lengths))
    assert episodes == [PlayedEpisode(float(each[0]), each[0]) for each in lengths]


def test_mean_length_is_that_of_all_episodes_and_not_of_those_that_end_first() -> None:
    envs = copies(*[Planned] * 8)
    episodes = play(envs, num_episodes=400)
    assert len(episodes) == 400
    # Half of 400 draws, give or take five standard deviations; the first 400 to end would hold over 9 in 10 short ones.
    assert abs(sum(episode.length == LENGTH_MAX for episode in episodes) - 200) < 50


def test_same_seed_plays_the_same_episodes_and_another_one_others() -> None:
    first, again, other = (play(copies(*[Planned] * 4), num_episodes=40, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_copies_that_played_before_play_the_same_episodes() -> None:
    envs = copies(*[Planned] * 4)
    play(envs, num_episodes=3, seed=9)
    assert play(envs, num_episodes=10, seed=1) == play(copies(*[Planned] * 4), num_episodes=10, seed=1)


def test_episodes_equal_those_of_one_environment_played_alone() -> None:
    """The slow twin: one CartPole after the other, without a vector, a guard or a mask."""
    description = EnvironmentDescription(
        env_id="CartPole-v1",
        observation_space=BoxSpace((4,), "float32", (-math.inf,), (math.inf,)),
        action_space=DiscreteSpace(2),
    )
    network = build_policy(description, PolicyConfig(kind="mlp", hidden=(8,)))
    weights = network.init_params(np.random.default_rng(0))
    make: Any = gymnasium.make
    reset_seeds: list[int] = []

    class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if seed is not None:
                reset_seeds.append(seed)
            return self.env.reset(seed=seed, options=options)

    envs = copies(*[lambda: Noted(make("CartPole-v1"))] * 3)
    episodes = play_episodes(
        envs, network, weights, num_episodes=3, seed=5, steps_max=STEPS_MAX, before_step=ignore
    )
    alone: list[PlayedEpisode] = []
    for seed in reset_seeds:
        env = make("CartPole-v1")
        observation, _ = env.reset(seed=seed)
        rewards: list[float] = []
        ended = False
        while not ended:
            outputs = network.action_outputs(weights, {"observations": observation[None]}, np)
            observation, reward, terminated, truncated, _ = env.step(int(outputs[0].argmax()))
            rewards.append(reward)
            ended = terminated or truncated
        alone.append(PlayedEpisode(sum(rewards), len(rewards)))
    assert episodes == alone
    assert len({episode.length for episode in episodes}) > 1


def test_episode_that_does_not_end_is_cut_and_counts_with_what_it_reached() -> None:
    envs = copies(partial(Planned, (3,)), partial(Planned, (1_000_000,)))
    assert play(envs, num_episodes=2, steps_max=20) == [
        PlayedEpisode(3.0, 3),
        PlayedEpisode(20.0, 20, was_cut=True),
    ]


def test_episode_in_which_the_environment_fails_counts_for_nothing() -> None:
    healthy, faulty = Script(), Script(steps={1: "raise"})
    envs = copies(partial(ScriptedEnv, healthy), partial(ScriptedEnv, faulty))
    episodes = play(envs, num_episodes=2)
    assert [episode.failed for episode in episodes] == [False, True]
    returns = summarise_returns(episodes)
    assert returns is not None
    assert (returns.mean_return, returns.num_episodes, returns.num_failed) == (3.0, 1, 1)


def test_copy_that_cannot_be_reset_counts_for_nothing() -> None:
    envs = copies(partial(ScriptedEnv, Script(resets={0: "nan"})), partial(ScriptedEnv, Script()))
    assert [episode.failed for episode in play(envs, num_episodes=2)] == [True, False]


def test_environment_that_cannot_be_reset_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        play(copies(partial(ScriptedEnv, Script(resets={0: "raise"}))), num_episodes=1)


def test_caller_sees_the_running_copies_before_each_step_and_may_end_the_call() -> None:
    seen: list[list[bool]] = []

    def stop_at_third(running_N: NDArray[np.bool_], _observations: object) -> None:
        seen.append(running_N.tolist())
        if len(seen) == 3:
            raise UnavailableError("enough")

    with pytest.raises(UnavailableError, match="enough"):
        play(
            copies(partial(Planned, (1,)), partial(Planned, (9,))), num_episodes=2, before_step=stop_at_third
        )
    assert seen == [[True, True], [False, True], [False, True]]


def test_summary_of_returns() -> None:
    episodes = [
        PlayedEpisode(2.0, 4),
        PlayedEpisode(6.0, 8, was_cut=True),
        PlayedEpisode(99.0, 1, failed=True),
    ]
    returns = summarise_returns(episodes)
    assert returns is not None
    assert (returns.mean_return, returns.std_return, returns.min_return, returns.max_return) == (
        4.0,
        2.0,
        2.0,
        6.0,
    )
    assert (returns.mean_length, returns.num_episodes, returns.num_cut, returns.num_failed) == (6.0, 2, 1, 1)
    assert summarise_returns(episodes[2:]) is None


def test_a_policy_with_memory_begins_each_episode_without_one() -> None:
    config = PolicyConfig(kind="mlp", hidden=(4,), memory="gru", memory_units=4)
    remembering = build_policy(policy().description, config)
    assert isinstance(remembering, RecurrentPolicy)
    made = {name: np.zeros(shape, np.float32) for name, shape in remembering.parameter_shapes().items()}
    # The state rises slowly to tanh(1), whatever is observed, and action 1 is preferred above 0.4.
    made["memory.input.bias"][:] = np.repeat([0.0, 2.0, 1.0], 4)
    made["policy.weight"][0, 1], made["policy.bias"][0] = 10.0, 4.0
    state = np.zeros((1, 4), np.float32)
    actions: list[int] = []
    for _ in range(LENGTH_MAX):
        outputs, state = remembering.stepper(made)({"observations": np.zeros((1, 2), np.float32)}, state)
        actions.append(int(remembering.actions.mode(outputs)[0]))
    assert 0 < sum(actions) < LENGTH_MAX
    episodes = play_episodes(
        copies(*[partial(Planned, (LENGTH_MAX,))] * 2),
        remembering,
        made,
        num_episodes=4,
        seed=3,
        steps_max=STEPS_MAX,
        before_step=ignore,
    )
    assert [episode.episode_return for episode in episodes] == [float(sum(actions))] * 4
