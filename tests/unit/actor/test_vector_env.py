"""The vector engine: the segment layout, which version acted when, episodes across segments, bad input."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tests.support.environments import CARTPOLE
from tests.unit.actor import toy_env
from tests.unit.actor.support import group_task, segment_engine, segment_task, snapshot, version
from tidegate.actor.engines.port import Engine, EngineControl, Sample
from tidegate.core.errors import ConfigError, NotFoundError, RecordError
from tidegate.core.records import Array, Sampler, VersionSpan
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig

DESCRIPTIONS = {known.env_id: known for known in (CARTPOLE, toy_env.DESCRIPTION)}


@pytest.fixture
def toy() -> Iterator[None]:
    """The counting environment, without what a test adds to its steps."""
    yield
    toy_env.before_step.clear()


def network(env_id: str = "CartPole-v1") -> SegmentPolicy:
    return build_policy(DESCRIPTIONS[env_id], PolicyConfig(kind="mlp", hidden=(8,)))


def logits(policy: dict[str, Array], observations: Array) -> Array:
    return network(toy_env.ENV_ID).action_outputs(policy, {"observations": observations}, np)


def params(seed: int, *, env_id: str = "CartPole-v1", gain: float = 100.0) -> dict[str, Array]:
    """A policy with clear preferences: fresh ones are nearly uniform."""
    fresh = network(env_id).init_params(np.random.default_rng(seed))
    return {
        name: (value * np.float32(gain) if name == "policy.1.weight" else value)
        for name, value in fresh.items()
    }


def unroll(engine: Engine, *, env_id: str = "CartPole-v1", num_steps: int = 8) -> Sample:
    task = segment_task(env_id=env_id, unroll_length=num_steps)
    engine.check_task(task)
    [rollouts] = engine.generate([task])
    [sample] = rollouts.samples
    assert rollouts.task == task
    assert rollouts.started_at_s <= rollouts.finished_at_s
    return sample


def log_softmax(values: Array) -> Array:
    shifted = values - values.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.usefixtures("toy")
def test_layout_is_next_step_autoreset_with_dummies_marked() -> None:
    control = EngineControl()
    engine = segment_engine(control, description=toy_env.DESCRIPTION, num_envs=2)
    control.newest = snapshot(0, params(0, env_id=toy_env.ENV_ID))
    sample = unroll(engine, env_id=toy_env.ENV_ID, num_steps=9)
    column = {name: tensor[:, 1].tolist() for name, tensor in sample.tensors.items()}
    # Three steps, the true last observation, a dummy that resets, and again.
    assert column["observations"] == [
        [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3], [3, 0], [3, 1],
    ]  # fmt: skip
    assert column["rewards"] == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert column["terminated"] == [step == 2 for step in range(9)]
    assert column["truncated"] == [step == 6 for step in range(9)]
    assert column["valid"] == [step not in (3, 7) for step in range(9)]
    assert sample.num_steps == 14
    assert {name: tensor.dtype.str[1:] for name, tensor in sample.tensors.items()} == {
        "observations": "f4",
        "actions": "i4",
        "behavior_logprobs": "f4",
        "rewards": "f4",
        "terminated": "b1",
        "truncated": "b1",
        "valid": "b1",
    }
    assert all(tensor.flags.c_contiguous for tensor in sample.tensors.values())
    assert set(np.unique(sample.tensors["actions"])) <= {0, 1, 2}


@pytest.mark.usefixtures("toy")
def test_episodes_and_dummies_continue_across_segments() -> None:
    control = EngineControl()
    engine = segment_engine(control, description=toy_env.DESCRIPTION, num_envs=2)
    control.newest = snapshot(0, params(0, env_id=toy_env.ENV_ID))
    samples = [unroll(engine, env_id=toy_env.ENV_ID, num_steps=num_steps) for num_steps in (2, 1, 1, 6)]
    ends = [[(end.episode_return, end.length, end.position) for end in sample.episodes] for sample in samples]
    assert ends == [[], [(6.0, 3, 1)] * 2, [], [(6.0, 3, 3)] * 2]
    assert [sample.tensors["valid"][:, 0].tolist() for sample in samples] == [
        [True, True],
        [True],
        [False],
        [True, True, True, False, True, True],
    ]
    for before, after in pairwise(samples):
        np.testing.assert_array_equal(before.tensors["observations"][-1], after.tensors["observations"][0])


@pytest.mark.usefixtures("toy")
def test_policy_offered_between_two_steps_acts_from_the_next_one_on() -> None:
    control = EngineControl()
    engine = segment_engine(control, description=toy_env.DESCRIPTION, num_envs=1)
    old, new = params(1, env_id=toy_env.ENV_ID), params(2, env_id=toy_env.ENV_ID)
    control.newest = snapshot(0, old)
    num_calls = 0

    def offer_at_third_step() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            control.newest = snapshot(1, new)

    toy_env.before_step.append(offer_at_third_step)
    sample = unroll(engine, env_id=toy_env.ENV_ID, num_steps=7)
    assert sample.spans == (VersionSpan(version(0), 0, 3), VersionSpan(version(1), 3, 7))
    assert control.num_swaps == 2
    assert control.serving is control.newest
    for span, acting in zip(sample.spans, (old, new), strict=True):
        steps = slice(span.start, span.stop)
        logprobs = log_softmax(logits(acting, sample.tensors["observations"][steps]))
        chosen = np.take_along_axis(logprobs, sample.tensors["actions"][steps, :, None].astype(int), axis=-1)
        np.testing.assert_allclose(sample.tensors["behavior_logprobs"][steps], chosen[..., 0], atol=1e-5)
    other = log_softmax(logits(old, sample.tensors["observations"][3:7]))
    wrong = np.take_along_axis(other, sample.tensors["actions"][3:7, :, None].astype(int), axis=-1)[..., 0]
    assert not np.allclose(sample.tensors["behavior_logprobs"][3:7], wrong, atol=1e-3)


def test_cartpole_returns_equal_a_walk_over_every_step() -> None:
    control = EngineControl()
    engine = segment_engine(control, num_envs=5)
    control.newest = snapshot(0, params(3, gain=1.0))
    samples = [unroll(engine, num_steps=13) for _ in range(12)]
    returns, lengths = np.zeros(5), np.zeros(5, int)
    walked: list[list[tuple[float, int, int]]] = []
    for sample in samples:
        ended: list[tuple[float, int, int]] = []
        tensors = sample.tensors
        for step in range(13):
            for column in range(5):
                returns[column] += tensors["rewards"][step, column]
                lengths[column] += tensors["valid"][step, column]
                if tensors["terminated"][step, column] or tensors["truncated"][step, column]:
                    ended.append((returns[column], lengths[column], step + 1))
                    returns[column], lengths[column] = 0.0, 0
        walked.append(ended)
    reported = [
        [(end.episode_return, end.length, end.position) for end in sample.episodes] for sample in samples
    ]
    assert reported == walked
    assert sum(len(ended) for ended in walked) > 5
    assert sum(sample.num_steps for sample in samples) == sum(
        sample.tensors["valid"].sum() for sample in samples
    )


def test_segments_do_not_share_memory() -> None:
    control = EngineControl()
    engine = segment_engine(control)
    control.newest = snapshot(0, params(0))
    first = unroll(engine)
    kept = {name: tensor.copy() for name, tensor in first.tensors.items()}
    unroll(engine)
    for name, tensor in kept.items():
        np.testing.assert_array_equal(first.tensors[name], tensor)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"policy.1.weight": np.zeros((8, 3), np.float32)}, "shape"),
        ({"extra": np.zeros(1, np.float32)}, "unknown"),
        ({"policy.0.bias": np.zeros(8, np.float64)}, "float64"),
        ({"policy.0.bias": np.full(8, np.nan, np.float32)}, "not finite"),
    ],
)
def test_policy_that_does_not_fit_is_named(change: dict[str, Array], problem: str) -> None:
    engine = segment_engine(EngineControl())
    engine.check_policy(snapshot(0, params(0)))
    with pytest.raises(RecordError, match=problem):
        engine.check_policy(snapshot(0, params(0) | change))


def test_task_that_is_no_segment_of_this_environment_is_refused() -> None:
    engine = segment_engine(EngineControl())
    for task, problem in (
        (group_task(), "is a group of 'arithmetic'"),
        (segment_task(env_id="Pendulum-v1"), "this actor steps 'CartPole-v1'"),
        (msgspec.structs.replace(segment_task(), unroll_length=0), "asks for 0 steps"),
        (msgspec.structs.replace(segment_task(), unroll_length=10**9), "asks for 1000000000 steps"),
    ):
        with pytest.raises(RecordError, match=problem):
            engine.check_task(task)


def test_unknown_environment_is_named() -> None:
    description = msgspec.structs.replace(toy_env.DESCRIPTION, env_id="Nope-v1")
    engine = segment_engine(EngineControl(), description=description)
    with pytest.raises(NotFoundError, match="Nope-v1"):
        engine.check_task(segment_task(env_id="Nope-v1"))


def test_environment_with_other_spaces_than_its_policy_is_refused() -> None:
    description = msgspec.structs.replace(toy_env.DESCRIPTION, env_id="Acrobot-v1")
    engine = segment_engine(EngineControl(), description=description)
    with pytest.raises(ConfigError, match="the environment service described"):
        engine.check_task(segment_task(env_id="Acrobot-v1"))


def test_segments_are_drawn_from_the_seeds_of_their_tasks() -> None:
    def segments(*seeds: int) -> list[Array]:
        control = EngineControl()
        engine = segment_engine(control)
        control.newest = snapshot(0, params(0, gain=1.0))
        made: list[Array] = []
        for seed in seeds:
            task = msgspec.structs.replace(segment_task(unroll_length=50), seed=seed)
            engine.check_task(task)
            [rollouts] = engine.generate([task])
            made.append(rollouts.samples[0].tensors["observations"])
        return made

    first, second = segments(1, 2)
    again, other = segments(1, 3)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(second[0], other[0])  # episodes continue from segment to segment
    assert not np.array_equal(second[1:], other[1:])
    assert not np.array_equal(first[0], segments(4)[0][0])


def test_stop_leaves_the_remaining_tasks_to_others() -> None:
    control = EngineControl()
    engine = segment_engine(control)
    control.newest = snapshot(0, params(0))
    engine.check_task(segment_task())
    control.stop = True
    assert engine.generate([segment_task()]) == []


def test_evaluation_is_refused() -> None:
    with pytest.raises(ConfigError, match="answers no prompts"):
        segment_engine(EngineControl()).complete(["1+1="], Sampler())


@pytest.mark.slow
def test_segments_are_generated_without_torch_or_grpc_in_the_engine() -> None:
    program = (
        "import sys\n"
        "from tests.unit.actor.test_vector_env import params, unroll\n"
        "from tests.unit.actor.support import segment_engine, snapshot\n"
        "from tidegate.actor.engines.port import EngineControl\n"
        "control = EngineControl()\n"
        "engine = segment_engine(control)\n"
        "control.newest = snapshot(0, params(0))\n"
        "assert unroll(engine).num_steps\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "the engine loads torch"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("cut_after", [0, 1, 4])
def test_cut_segment_has_no_rollout_and_the_next_one_continues(cut_after: int) -> None:
    control = EngineControl()
    engine = segment_engine(control, description=toy_env.DESCRIPTION, num_envs=1)
    control.newest = snapshot(0, params(0, env_id=toy_env.ENV_ID))
    task = segment_task(env_id=toy_env.ENV_ID, unroll_length=9)
    engine.check_task(task)
    num_steps = 0

    def cut_when_it_is_time() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == cut_after:
            control.cut = frozenset([task.task_id])

    toy_env.before_step.append(cut_when_it_is_time)
    if cut_after == 0:
        control.cut = frozenset([task.task_id])
    assert engine.generate([task]) == []
    assert num_steps == cut_after
    assert control.running is None
    control.cut = frozenset()
    sample = unroll(engine, env_id=toy_env.ENV_ID, num_steps=9)
    # Every episode is three steps of rewards 1, 2 and 3, whichever segment saw them.
    assert [(end.episode_return, end.length) for end in sample.episodes] == [(6.0, 3)] * len(sample.episodes)
    assert len(sample.episodes) >= 2


@pytest.mark.usefixtures("toy")
def test_segments_of_one_stream_continue_each_other_unless_one_was_cut() -> None:
    control = EngineControl()
    engine = segment_engine(control, description=toy_env.DESCRIPTION, num_envs=2)
    control.newest = snapshot(0, params(0, env_id=toy_env.ENV_ID))
    first, second = (unroll(engine, env_id=toy_env.ENV_ID, num_steps=5) for _ in range(2))
    assert (first.stream_position, second.stream_position) == (0, 1)
    assert first.stream_id == second.stream_id != ""
    np.testing.assert_array_equal(first.tensors["observations"][-1], second.tensors["observations"][0])

    task = segment_task(env_id=toy_env.ENV_ID, unroll_length=5)
    toy_env.before_step.append(lambda: setattr(control, "cut", frozenset([task.task_id])))
    assert engine.generate([task]) == []
    toy_env.before_step.clear()
    control.cut = frozenset()
    assert unroll(engine, env_id=toy_env.ENV_ID, num_steps=5).stream_position == 3


@pytest.mark.usefixtures("toy")
def test_replaced_actor_begins_another_stream() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0, env_id=toy_env.ENV_ID))
    engines = [segment_engine(control, description=toy_env.DESCRIPTION, num_envs=1) for _ in range(2)]
    samples = [unroll(engine, env_id=toy_env.ENV_ID, num_steps=5) for engine in engines]
    assert samples[0].stream_id != samples[1].stream_id
    assert {sample.stream_position for sample in samples} == {0}
