"""The bytes of a step between an actor and the inference service."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.environments import CARTPOLE
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace, observation_leaves
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig
from tidegate.wire.vector_step import STEP_BYTES_MAX, StepLayout

VERSION = PolicyVersion(LineageName("0-a"), 3)
SPACE = DictSpace(
    {
        "image": BoxSpace(shape=(2, 3), dtype="uint8", low=(0.0,), high=(255.0,)),
        "place": DiscreteSpace(5),
        "speed": BoxSpace(shape=(2,), dtype="float64", low=(-1.0,), high=(1.0,)),
    }
)


def layout_of(num_envs: int = 4, *, memory_size: int = 2, outputs_size: int = 0) -> StepLayout:
    return StepLayout(
        observation_leaves(SPACE),
        num_envs=num_envs,
        memory_size=memory_size,
        action_shape=(),
        action_dtype="int32",
        outputs_size=outputs_size,
    )


@given(data=st.data(), num_envs=st.integers(1, 5))
def test_observations_come_back_as_they_were(data: st.DataObject, num_envs: int) -> None:
    layout = layout_of(num_envs)
    observations: dict[str, Array] = {
        tensor.name: data.draw(arrays.arrays(tensor.dtype, (num_envs, *tensor.shape)))
        for tensor in layout.tensors
    }
    joined = layout.join(observations)
    assert len(joined) + layout.num_envs * 4 * layout.memory_size == layout.request_bytes
    found = layout.split(joined)
    assert found.keys() == observations.keys()
    for name, array in observations.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_strided_observations_are_joined_in_their_own_order() -> None:
    layout = layout_of(3)
    observations = {
        tensor.name: np.asfortranarray(
            np.arange(3 * int(np.prod(tensor.shape))).reshape(3, *tensor.shape).astype(tensor.dtype)
        )
        for tensor in layout.tensors
    }
    found = layout.split(layout.join(observations))
    for name, array in observations.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("change", [-1, 1, 4])
def test_bytes_of_another_size_are_refused_with_both_sizes(change: int) -> None:
    layout = layout_of()
    size = 4 * (6 + 4 + 8)
    with pytest.raises(RecordError, match=rf"{size + change} bytes.* 4 environments have {size}"):
        layout.split(bytes(size + change))
    with pytest.raises(RecordError, match="memory"):
        layout.memory(bytes(4 * 2 * 4 + change))


def test_answer_is_read_by_the_action_of_its_policy_and_one_that_does_not_fit_is_refused() -> None:
    layout = layout_of()
    actions = np.array([0, 3, 2, 1], np.int32)
    logprobs, memory = np.zeros(4, np.float32), np.ones((4, 2), np.float32)

    def parts(**changed: bytes) -> dict[str, bytes]:
        whole = {
            "actions": actions.tobytes(),
            "logprobs": logprobs.tobytes(),
            "memory": memory.tobytes(),
            "outputs": b"",
        }
        return {**whole, **changed}

    answer = layout.acted(7, VERSION, **parts())
    np.testing.assert_array_equal(answer.actions, actions)
    np.testing.assert_array_equal(answer.memory, memory)
    assert (answer.number, answer.version) == (7, VERSION)
    for name in parts():
        with pytest.raises(RecordError, match=name):
            layout.acted(7, VERSION, **parts(**{name: b"123"}))
    with pytest.raises(RecordError, match="names no policy"):
        layout.acted(7, PolicyVersion(LineageName(""), 0), **parts())


def test_answer_holds_the_outputs_alone_where_the_actor_draws_the_actions() -> None:
    layout = layout_of(outputs_size=3)
    outputs, memory = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 2), np.float32)

    def parts(**changed: bytes) -> dict[str, bytes]:
        whole = {
            "actions": b"",
            "logprobs": b"",
            "memory": memory.tobytes(),
            "outputs": outputs.tobytes(),
        }
        return {**whole, **changed}

    answer = layout.acted(7, VERSION, **parts())
    np.testing.assert_array_equal(answer.outputs, outputs)
    assert answer.actions.size == answer.logprobs.size == 0
    for name in parts():
        with pytest.raises(RecordError, match=name):
            layout.acted(7, VERSION, **parts(**{name: b"1234"}))


def test_steps_larger_than_a_message_are_refused_with_the_number_of_environments_that_fits() -> None:
    layout = layout_of(1_000_000)
    with pytest.raises(ConfigError, match=r"workload.num_envs to (\d+)") as refused:
        layout.check_size()
    fits = int(refused.value.fix.split()[-1])
    assert layout_of(fits).request_bytes <= STEP_BYTES_MAX < layout_of(fits + 1).request_bytes
    layout_of(fits).check_size()


def test_layout_of_a_policy_is_that_of_its_environment_and_memory() -> None:
    plain = build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=(8,)))
    recurrent = build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=(8,), memory="lstm", memory_units=5))
    assert StepLayout.of(plain, num_envs=2).request_bytes == 2 * 4 * 4
    assert StepLayout.of(recurrent, num_envs=2).request_bytes == 2 * (4 * 4 + 4 * 10)
