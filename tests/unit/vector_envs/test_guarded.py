"""The guard of vector environments: a fault costs the episode of its copy, and later resets are drawn from seeds."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from tests.unit.vector_envs.scripted_envs import Event, Script, ScriptedEnv, ScriptedForm
from tidegate.core.errors import ConfigError
from tidegate.vector_envs.batches import ObservationBatches
from tidegate.vector_envs.faults import EnvironmentFailedError
from tidegate.vector_envs.guarded import GuardedCopies, GuardedForm, guard
from tidegate.vector_envs.guarded_port import SEED_MAX

ENV_ID = "scripted:Env-v0"
OK = (False, False, False)
TERMINATED = (True, False, False)
FAULTED = (False, True, True)


def copies_of(*scripts: Script) -> GuardedCopies:
    """One copy for each script; a copy that is made again continues its script."""
    guarded = guard(ENV_ID, lambda: SyncVectorEnv([partial(ScriptedEnv, script) for script in scripts]))
    assert isinstance(guarded, GuardedCopies)
    return guarded


def form_of(script: Script, *, num_envs: int) -> GuardedForm:
    guarded = guard(ENV_ID, partial(ScriptedForm, script, num_envs=num_envs))
    assert isinstance(guarded, GuardedForm)
    return guarded


def steps_of(envs: Any, num_steps: int) -> list[list[tuple[list[float], float, tuple[bool, bool, bool]]]]:
    """For each copy and step: observation, reward, and (terminated, truncated, faulted)."""
    columns: list[list[tuple[list[float], float, tuple[bool, bool, bool]]]] = [
        [] for _ in range(envs.num_envs)
    ]
    for _ in range(num_steps):
        observations, rewards, terminated, truncated, _ = envs.step(np.zeros(envs.num_envs, np.int64))
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        flags = zip(terminated.tolist(), truncated.tolist(), envs.faulted_N.tolist(), strict=True)
        for index, flag in enumerate(flags):
            columns[index].append((observations[index].tolist(), float(rewards[index]), flag))
    return columns


@pytest.mark.parametrize("event", ["raise", "exit", "nan", "inf reward", "shape"])
def test_copy_that_fails_ends_its_episode_and_resets_in_the_next_step(event: Event) -> None:
    healthy, faulty = Script(), Script(steps={4: event})
    envs = copies_of(healthy, faulty)
    observations, _ = envs.reset(seed=1)
    assert observations.tolist() == [[1, 0], [1, 0]]
    others, failed = steps_of(envs, 8)
    assert failed == [
        ([1, 1], 1.0, OK),
        ([1, 2], 1.0, OK),
        ([1, 3], 1.0, TERMINATED),
        ([2, 0], 0.0, OK),
        ([2, 1], 1.0, OK),
        ([2, 1], 0.0, FAULTED),  # the observation before the step that failed
        ([3, 0], 0.0, OK),  # the first one of another copy
        ([3, 1], 1.0, OK),
    ]
    assert (faulty.num_made, faulty.num_closed) == (2, 1)
    assert [flags for _, _, flags in others].count(FAULTED) == 0
    assert (healthy.num_made, healthy.num_resets) == (1, 3)


def test_fault_names_environment_copy_call_and_cause() -> None:
    envs = copies_of(Script(), Script(steps={0: "raise", 1: "nan", 2: "inf reward"}, resets={2: "raise"}))
    envs.reset(seed=1)
    steps_of(envs, 12)
    report = envs.faults.take()
    assert report is not None
    first, *others = report.newest
    assert str(first).startswith(
        "Copy 1 of 'scripted:Env-v0' raised in step: ValueError('the simulator diverged') at scripted_envs.py:"
    )
    assert "take_step" in first.trace
    assert [str(fault).partition(" at ")[0] for fault in others] == [
        "Copy 1 of 'scripted:Env-v0' returned a number that is not finite from step: observations[1] is nan",
        "Copy 1 of 'scripted:Env-v0' raised in reset: ValueError('the simulator diverged')",
        "Copy 1 of 'scripted:Env-v0' returned a number that is not finite from step: reward is inf",
    ]
    assert report.counts == {"raised": 2, "not_finite": 2}
    assert envs.faults.take() is None


def test_reset_and_make_that_fail_are_tried_again_after_a_pause() -> None:
    script = Script(steps={0: "raise"}, makes=frozenset({1}), resets={1: "raise"})
    envs = copies_of(Script(), script)
    envs.reset(seed=1)
    _, column = steps_of(envs, 9)
    assert [flags for _, _, flags in column] == [
        FAULTED,  # the step
        FAULTED,  # the copy cannot be made
        FAULTED,  # a pause of one step
        FAULTED,  # the reset
        *[FAULTED] * 3,  # a pause of three steps
        OK,
        OK,
    ]
    assert [observation for observation, _, _ in column] == [[1, 0]] * 7 + [[3, 0], [3, 1]]


def test_copies_that_all_pause_are_tried_at_once() -> None:
    scripts = [Script(resets={1: "raise", 2: "raise"}, steps={0: "raise"}) for _ in range(2)]
    envs = copies_of(*scripts)
    envs.reset(seed=1)
    for column in steps_of(envs, 5):
        assert [flags for _, _, flags in column] == [FAULTED, FAULTED, FAULTED, OK, OK]


def test_environment_that_never_resets_is_refused() -> None:
    for envs in (
        copies_of(Script(resets={0: "raise"}), Script(resets={0: "nan"})),
        form_of(Script(resets={0: "raise"}), num_envs=2),
    ):
        with pytest.raises(ConfigError, match=r"'scripted:Env-v0' cannot be used.*(in|from) reset"):
            envs.reset(seed=1)


def test_copy_whose_first_reset_fails_has_a_finite_row_and_comes_later() -> None:
    envs = copies_of(Script(), Script(resets={0: "nan"}))
    observations, _ = envs.reset(seed=1)
    assert observations.tolist() == [[1, 0], [0, 0]]
    assert envs.faulted_N.tolist() == [False, True]
    _, column = steps_of(envs, 2)
    assert column == [([2, 0], 0.0, OK), ([2, 1], 1.0, OK)]


def test_environment_whose_copies_all_keep_failing_is_given_up() -> None:
    always: dict[int, Event] = dict.fromkeys(range(10_000), "raise")
    for envs in (
        copies_of(Script(steps=always), Script(steps=always)),
        form_of(Script(steps=always), num_envs=2),
    ):
        envs.reset(seed=1)
        with pytest.raises(EnvironmentFailedError, match=r"keeps failing: 10 times in a row.*diverged"):
            steps_of(envs, 10_000)


@pytest.mark.parametrize("event", ["raise", "nan", "inf reward"])
def test_vector_form_that_fails_ends_all_of_its_episodes(event: Event) -> None:
    script = Script(steps={2: event})
    envs = form_of(script, num_envs=2)
    envs.reset(seed=1)
    for column in steps_of(envs, 6):
        assert column == [
            ([1, 1], 1.0, OK),
            ([1, 2], 1.0, OK),
            (column[2][0], 0.0, FAULTED),
            ([2, 0], 0.0, OK),
            ([2, 1], 1.0, OK),
            ([2, 2], 1.0, OK),
        ]
    assert (script.num_made, script.num_closed) == (2, 1)
    report = envs.faults.take()
    assert report is not None
    assert report.newest[0].copy == (1 if event == "nan" or event == "inf reward" else -1)


def test_resets_are_drawn_from_their_seed_once_a_segment() -> None:
    seeds: list[list[int | None]] = []
    for _ in range(2):
        script = Script(steps={4: "raise"})
        envs = copies_of(script)
        envs.reset(seed=5)
        steps_of(envs, 8)
        envs.draw_resets(np.random.default_rng(6))
        steps_of(envs, 8)
        seeds.append(script.seeds)
    assert seeds[0] == seeds[1]
    # First reset, one that continues, a copy made again, first one of the next segment, one that continues.
    assert [seed is None for seed in seeds[0]] == [False, True, False, False, True]
    assert len(set(seeds[0])) == 4


def test_vector_form_draws_its_resets_from_the_seed() -> None:
    def returns(seed: int) -> list[list[float]]:
        envs = guard("CartPole-v1", lambda: gymnasium.make_vec("CartPole-v1", num_envs=3))
        assert isinstance(envs, GuardedForm)
        envs.reset(seed=1)
        envs.draw_resets(np.random.default_rng(seed))
        return [envs.step(np.ones(3, np.int64))[0].tolist() for _ in range(40)]

    assert returns(2) == returns(2)
    assert returns(2) != returns(3)


def test_healthy_copies_step_like_gymnasiums_own() -> None:
    def make() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    plain: Any = make()
    guarded: Any = guard("CartPole-v1", make)
    rng = np.random.default_rng(0)
    seeds = np.random.default_rng(1)
    plain.reset(seed=[int(seeds.integers(SEED_MAX)) for _ in range(3)])
    guarded.reset(seed=1)
    for _ in range(200):
        actions = rng.integers(0, 2, 3)
        for ours, theirs in zip(guarded.step(actions)[:4], plain.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert guarded.observation_space == plain.observation_space
    assert guarded.action_space == plain.action_space
    assert guarded.metadata["autoreset_mode"] == plain.metadata["autoreset_mode"]


def test_component_is_named_inside_dicts_and_tuples() -> None:
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "name": spaces.Text(8),
            "joints": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(4)]),
        }
    )
    batches = ObservationBatches(space, num_envs=2)
    batch = batches.zeros()
    good = {"image": np.ones((2, 2), np.uint8), "name": "a", "joints": (np.ones((2, 3)), 3)}
    bad = {**good, "joints": (np.array([[0, 0, 0], [0, -np.inf, np.nan]]), 3)}
    batch.write(0, good)
    assert batches.are_finite(batch.observations, np.zeros(2))
    batch.write(1, bad)
    assert not batches.are_finite(batch.observations, np.zeros(2))
    [found] = batch.not_finite(np.zeros(2))
    assert (found.copy, found.component) == (1, "observations.joints.0[1, 1] is -inf")
    copied = batches.copied(batch).observations
    assert copied["joints"][0][1].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert copied["image"].tolist() == batch.observations["image"].tolist()
    assert list(copied["name"]) == ["a", "a"]


@pytest.mark.filterwarnings("ignore:overflow")
def test_huge_finite_numbers_are_no_fault() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    batches = ObservationBatches(space, num_envs=1)
    batch = batches.zeros()
    batch.write(0, np.array([3e38, -3e38], np.float32))
    assert not batches.are_finite(batch.observations, np.zeros(1))  # only doubted
    assert batch.not_finite(np.zeros(1)) == []
