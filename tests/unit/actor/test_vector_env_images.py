"""The vector engine with images: frames once, and versions prepared beside the steps."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit.actor import toy_pixels
from tests.unit.actor.support import segment_task, snapshot
from tidegate.actor.engines.port import Engine, EngineControl, Sample
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.algorithms.frame_stacks import observed, with_frames
from tidegate.core.records import Array, PolicySnapshot
from tidegate.models.cnn import CnnPolicy
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

CNN = PolicyConfig(kind="cnn", features=8)


@pytest.fixture(autouse=True)
def _no_hooks() -> Iterator[None]:
    yield
    toy_pixels.before_step.clear()


def network() -> SegmentPolicy:
    return build_policy(toy_pixels.DESCRIPTION, CNN)


def engine_of(control: EngineControl, *, num_envs: int = 2) -> Engine:
    description = toy_pixels.DESCRIPTION
    setting = EngineSetting(
        workload=WorkloadConfig(kind="segments", env=description.env_id, num_envs=num_envs),
        policy=CNN,
        seed=0,
        actor_index=0,
        description=description,
    )
    return open_engine("auto", setting, control, SystemClock())


def version(step: int) -> PolicySnapshot:
    """Policies that differ, with clear preferences."""
    params = network().init_params(np.random.default_rng(step))
    return snapshot(step, params | {"policy.weight": 300.0 * params["policy.weight"]})


def unroll(engine: Engine, *, num_steps: int) -> Sample:
    task = segment_task(env_id=toy_pixels.DESCRIPTION.env_id, unroll_length=num_steps)
    engine.check_task(task)
    [rollouts] = engine.generate([task])
    [sample] = rollouts.samples
    return sample


def images_of(sample: Sample) -> Array:
    """(T+1, N, 2, H, W)."""
    leaves = network().observations
    tensors = with_frames(sample.tensors, leaves, name="A segment")
    frames, starts = tensors["frames.observations"], tensors["starts.observations"]
    return observed(frames, starts, leaves["observations"], np)


def test_each_frame_is_recorded_once_and_stacks_come_back_across_episodes_and_segments() -> None:
    control = EngineControl()
    engine = engine_of(control)
    control.newest = version(0)
    shown: list[list[int]] = []
    for _ in range(2):
        sample = unroll(engine, num_steps=5)
        # Two episodes begin within eight steps; each begins with a frame of zeros.
        assert len(sample.tensors["frames.observations"]) <= 2 * (5 + 2 + 2)
        assert "observations" not in sample.tensors
        images = images_of(sample)[:, 1, :, 0, 0].tolist()
        assert not shown or shown.pop() == images[0], "a segment begins where the one before stopped"
        shown += images
    # Three steps, the true last observation, which the row that resets follows, and again.
    expected = [
        [0, 10],
        [10, 11],
        [11, 12],
        [12, 13],
        [0, 20],
        [20, 21],
        [21, 22],
        [22, 23],
        [0, 30],
        [30, 31],
    ]
    assert shown == [*expected, [31, 32]]


def test_logprobs_are_those_of_the_version_that_acted() -> None:
    control = EngineControl()
    engine = engine_of(control, num_envs=3)
    old, new = version(0), version(1)
    for each in (old, new):
        engine.check_policy(each)
    control.newest = old
    calls = [0]

    def swap() -> None:
        calls[0] += 1
        if calls[0] == 3 * 4:  # within the fourth step
            control.newest = new

    toy_pixels.before_step.append(swap)
    sample = unroll(engine, num_steps=7)
    assert [(span.version, span.start, span.stop) for span in sample.spans] == [
        (old.version, 0, sample.spans[0].stop),
        (new.version, sample.spans[0].stop, 7),
    ]
    policy, images = network(), images_of(sample)
    for span, acting in zip(sample.spans, (old, new), strict=True):
        run = policy.runner(acting.tensors)
        for step in range(span.start, span.stop):
            outputs = run({"observations": images[step]})
            logprobs = policy.actions.logprobs(outputs, sample.tensors["actions"][step], np)
            np.testing.assert_allclose(logprobs, sample.tensors["behavior_logprobs"][step], atol=1e-6)


def test_version_is_prepared_when_it_is_checked_and_not_between_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[float] = []
    runner = CnnPolicy.runner

    def counted(self: CnnPolicy, params: dict[str, Array], *, threads: int = 1) -> object:
        prepared.append(float(params["policy.bias"][0]))
        return runner(self, params, threads=threads)

    monkeypatch.setattr(CnnPolicy, "runner", counted)
    control = EngineControl()
    engine = engine_of(control)
    for step in range(3):
        control.newest = version(step)
        engine.check_policy(control.newest)
        unroll(engine, num_steps=4)
    assert len(prepared) == 3
    assert control.num_swaps == 3
