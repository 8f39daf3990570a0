"""The engine of A3C: gradients of the segments that the vector engine plays, each of one version."""

import numpy as np
import pytest

from tests.unit.actor.support import segment_engine, segment_task, snapshot, version
from tests.unit.actor.test_vector_env import params
from tidegate.actor.engines.gradient_env import segment_gradient
from tidegate.actor.engines.port import Engine, EngineControl, Sample
from tidegate.actor.engines.vector_env import VectorEnvEngine
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.core.errors import ConfigError
from tidegate.core.records import Sampler


def played(engine: Engine, *, num_steps: int = 8) -> Sample:
    task = segment_task(unroll_length=num_steps)
    engine.check_task(task)
    [rollouts] = engine.generate([task])
    [sample] = rollouts.samples
    return sample


def test_record_is_the_gradient_of_the_segment_that_was_played() -> None:
    segments, gradients = EngineControl(), EngineControl()
    segments.newest = gradients.newest = snapshot(3, params(0))
    plain = segment_engine(segments)
    expected = played(plain)
    sample = played(segment_engine(gradients, engine="gradient_env"))
    assert isinstance(plain, VectorEnvEngine)
    tensors = segment_gradient(plain.policy, params(0), expected.tensors, ActorCriticSettings())
    assert sample.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(sample.tensors[name], tensor, err_msg=name)
    assert (sample.num_steps, sample.episodes) == (expected.num_steps, expected.episodes)
    assert gradients.num_swaps == 1


def test_segment_keeps_the_version_that_it_began_with() -> None:
    first, second = snapshot(0, params(0)), snapshot(1, params(1))

    class Arriving(EngineControl):
        """A newer version arrives in the third step."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "position" and value == 2:
                self.newest = second

    control = Arriving()
    control.newest = first
    engine = segment_engine(control, engine="gradient_env")
    sample = played(engine)
    assert [span.version for span in sample.spans] == [version(0)]
    assert [span.version for span in played(engine).spans] == [version(1)]


def test_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="answers no prompts"):
        segment_engine(EngineControl(), engine="gradient_env").complete(["1+1="], Sampler())
