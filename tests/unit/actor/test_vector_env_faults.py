"""Faults of environments in segments: the layout stays exact, and nothing of a failed step is recorded or trained."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.actor.support import segment_engine, segment_task, snapshot
from tests.unit.vector_envs import scripted_envs
from tests.unit.vector_envs.scripted_envs import ENV_ID, Event, Script
from tidegate.actor.engines import vector_env
from tidegate.actor.engines.port import EngineControl, Sample
from tidegate.actor.engines.vector_env import FAILED_SEGMENTS_MAX, VectorEnvEngine
from tidegate.catalogue import actor as statistics
from tidegate.core.records import Array, EpisodeEnd
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig
from tidegate.vector_envs.faults import EnvironmentFailedError

SCRIPTED = EnvironmentDescription(
    env_id=ENV_ID,
    observation_space=BoxSpace(shape=(2,), dtype="float32", low=(-np.inf,), high=(np.inf,)),
    action_space=DiscreteSpace(2),
)
POLICY = build_policy(SCRIPTED, PolicyConfig(kind="mlp", hidden=(8,)))
RAISED = statistics.ENVIRONMENT_FAULTS.member("raised")
NOT_FINITE = statistics.ENVIRONMENT_FAULTS.member("not_finite")


@pytest.fixture(autouse=True)
def unscripted() -> Iterator[None]:
    yield
    scripted_envs.scripts.clear()


class Actor:
    """An engine of scripted environments: the first copies follow ``scripts``, copies made again are healthy."""

    def __init__(self, *scripts: Script) -> None:
        scripted_envs.scripts.clear()
        scripted_envs.scripts.extend(scripts)
        self.control = EngineControl()
        engine = segment_engine(self.control, description=SCRIPTED, num_envs=len(scripts))
        assert isinstance(engine, VectorEnvEngine)
        self.engine = engine
        self.control.newest = snapshot(0, POLICY.init_params(np.random.default_rng(0)))

    def unroll(self, num_steps: int) -> Sample:
        task = segment_task(env_id=ENV_ID, unroll_length=num_steps)
        self.engine.check_task(task)
        [rollouts] = self.engine.generate([task])
        [sample] = rollouts.samples
        return sample


def column(sample: Sample, index: int = 0) -> dict[str, list[Any]]:
    return {name: tensor[:, index].astype(float).tolist() for name, tensor in sample.tensors.items()}


@pytest.mark.parametrize("event", ["raise", "exit", "nan", "inf reward", "shape"])
def test_episode_is_truncated_at_the_step_before_the_one_that_failed(event: Event) -> None:
    actor = Actor(Script(), Script(steps={4: event}))
    rows = column(actor.unroll(10), 1)
    assert rows["observations"] == [
        [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 1], [1, 0], [1, 1], [1, 2], [1, 3],
    ]  # fmt: skip
    #                      episode 1, reset, a step, failed, made again, episode 3
    assert rows["valid"] == [1, 1, 1, 0, 1, 0, 0, 1, 1, 1]
    assert rows["terminated"] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert rows["truncated"] == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert rows["rewards"] == [1, 1, 1, 0, 1, 0, 0, 1, 1, 1]


def test_other_copies_and_their_returns_are_untouched() -> None:
    sample = Actor(Script(), Script(steps={4: "raise"})).unroll(10)
    healthy = Actor(Script(), Script()).unroll(10)
    for name in ("observations", "rewards", "terminated", "truncated", "valid"):
        assert column(sample, 0)[name] == column(healthy, 0)[name]
    # The cut episode of one step has no return.
    assert sample.episodes == (
        EpisodeEnd(3.0, 3, 3), EpisodeEnd(3.0, 3, 3), EpisodeEnd(3.0, 3, 7), EpisodeEnd(3.0, 3, 10),
    )  # fmt: skip


def test_first_step_of_a_segment_that_fails_is_no_step_and_ends_its_episode() -> None:
    actor = Actor(Script(steps={2: "raise"}))
    before, after = actor.unroll(2), actor.unroll(6)
    # The segment before bootstraps from its last observation as if nothing had happened.
    assert column(before)["valid"] == [1, 1]
    assert column(before)["truncated"] == [0, 0]
    assert column(after)["valid"] == [0, 0, 1, 1, 1, 0]
    assert column(after)["truncated"] == [1, 0, 0, 0, 0, 0]
    assert column(after)["observations"] == [[1, 2], [1, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0]]
    assert after.episodes == (EpisodeEnd(3.0, 3, 5),)


def test_last_step_of_a_segment_that_fails_makes_the_next_row_a_reset() -> None:
    actor = Actor(Script(steps={1: "raise"}))
    before, after = actor.unroll(2), actor.unroll(4)
    assert column(before)["valid"] == [1, 0]
    assert column(before)["truncated"] == [1, 1]
    assert column(after)["valid"] == [0, 1, 1, 1]


def test_first_step_of_an_episode_that_fails_leaves_no_step_of_it() -> None:
    rows = column(Actor(Script(steps={3: "raise"})).unroll(8))
    assert rows["valid"] == [1, 1, 1, 0, 0, 0, 1, 1]
    assert rows["truncated"] == [0, 0, 0, 1, 1, 0, 0, 0]


def test_reset_that_fails_is_no_step_and_the_episode_before_it_counts() -> None:
    sample = Actor(Script(resets={1: "nan"})).unroll(8)
    rows = column(sample)
    assert rows["valid"] == [1, 1, 1, 0, 0, 1, 1, 1]
    assert rows["terminated"] == [0, 0, 1, 0, 0, 0, 0, 1]
    assert rows["truncated"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert sample.episodes == (EpisodeEnd(3.0, 3, 3), EpisodeEnd(3.0, 3, 8))


def test_copy_that_cannot_begin_starts_with_rows_that_are_no_steps() -> None:
    rows = column(Actor(Script(), Script(resets={0: "raise"})).unroll(4), 1)
    assert rows["valid"] == [0, 1, 1, 1]
    assert rows["observations"][0] == [0, 0]


EVENTS = st.sampled_from(("raise", "nan", "inf reward", "shape"))
SCRIPTS = st.builds(
    Script,
    steps=st.dictionaries(st.integers(0, 30), EVENTS, max_size=8),
    resets=st.dictionaries(
        st.integers(1, 10), EVENTS.filter(lambda event: event != "inf reward"), max_size=3
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=st.lists(SCRIPTS, min_size=1, max_size=3), lengths=st.lists(st.integers(2, 12), max_size=6))
def test_layout_holds_whatever_fails(scripts: list[Script], lengths: list[int]) -> None:
    actor = Actor(Script(), *scripts)  # with a healthy copy no segment is empty
    done_N = np.zeros(len(scripts) + 1, np.bool_)
    last: dict[str, Array] = {}
    for length in lengths:
        tensors = actor.unroll(length).tensors
        done_TN = tensors["terminated"] | tensors["truncated"]
        # Exactly the rows after an end are no steps, but where the first step of a segment fails.
        np.testing.assert_array_equal(tensors["valid"][1:], ~done_TN[:-1])
        assert not (tensors["valid"][0] & done_N).any()
        assert (tensors["valid"][0] | done_N | tensors["truncated"][0]).all()
        for tensor in tensors.values():
            assert np.isfinite(tensor.astype(np.float64)).all()
        assert not tensors["rewards"][~tensors["valid"]].any()
        if last:
            np.testing.assert_array_equal(last["observations"][-1], tensors["observations"][0])
        # A valid step was made by an environment: the counter in its observation goes up by one.
        steps_SN = tensors["observations"][..., 1]
        assert (steps_SN[1:] == steps_SN[:-1] + 1)[tensors["valid"]].all()
        done_N, last = done_TN[-1], tensors


def test_faults_are_counted_by_kind_and_the_newest_are_left_to_the_log() -> None:
    actor = Actor(Script(steps={1: "raise"}), Script(steps={0: "nan"}))
    actor.unroll(4)
    assert actor.control.figures == {RAISED: 1.0, NOT_FINITE: 1.0}
    assert [(fault.copy, fault.kind) for fault in actor.control.faults] == [(1, "not_finite"), (0, "raised")]
    scripted_envs.scripts.clear()
    actor.unroll(4)
    assert actor.control.figures == {RAISED: 1.0, NOT_FINITE: 1.0}


def test_short_segment_of_faults_alone_is_made_again() -> None:
    actor = Actor(Script(steps={0: "raise"}))
    sample = actor.unroll(2)
    assert sample.num_steps == 2
    assert actor.control.figures == {RAISED: 1.0}


def test_environment_that_only_fails_ends_the_engine_with_its_cause() -> None:
    scripts = [Script(steps={0: "raise"}) for _ in range(40)]
    actor = Actor(scripts[0])
    scripted_envs.scripts.extend(scripts[1:])
    with pytest.raises(EnvironmentFailedError, match=r"keeps failing.*the simulator diverged"):
        actor.unroll(8)
    assert actor.control.figures == {RAISED: 10.0}
    assert actor.control.watched[0].progress() is None


def test_failure_outside_of_the_copies_costs_the_segment_and_at_last_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = Actor(Script(), Script())
    actor.unroll(2)
    task = segment_task(env_id=ENV_ID)

    def broken(*_: Any, **__: Any) -> dict[str, Array]:
        raise IndexError("a wrapper's bug")

    for _ in range(FAILED_SEGMENTS_MAX):
        with monkeypatch.context() as broken_here:
            broken_here.setattr(vector_env.RunningEpisodes, "close_segment", broken)
            assert actor.engine.generate([task]) == []
        assert actor.unroll(4).num_steps == 6
    assert actor.control.figures == {RAISED: FAILED_SEGMENTS_MAX}
    monkeypatch.setattr(vector_env.RunningEpisodes, "close_segment", broken)
    for _ in range(FAILED_SEGMENTS_MAX - 1):
        actor.engine.check_task(task)
        assert actor.engine.generate([task]) == []
    actor.engine.check_task(task)
    with pytest.raises(EnvironmentFailedError, match=r"failed in 3 segments in a row.*a wrapper's bug"):
        actor.engine.generate([task])
