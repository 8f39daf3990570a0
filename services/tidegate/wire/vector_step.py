"""One step of an actor's environments between it and the inference service: tensors as raw bytes in a fixed order.

The layout follows from the environment's description, which both sides have, so that a message holds no names. Shapes:
N environments, M numbers of a policy's state (0 without memory), P outputs that an answer holds (0 where the service
draws the actions).
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array
from tidegate.core.spaces import Leaf, recorded_dtype, recorded_shape
from tidegate.core.staleness import LineageTree
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policy_port import StepPolicy

# Of one request, below the limit of gRPC messages (``runtime.rpc``).
STEP_BYTES_MAX = 7 * 1024 * 1024

NO_OUTPUTS: Array = np.empty((0, 0), np.float32)


class StepTensor(msgspec.Struct, frozen=True):
    """One tensor of an observation of one environment."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of one environment."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ActOpening(msgspec.Struct, frozen=True):
    """What an actor sends first: who it is, and the layout of its steps."""

    run_id: str
    instance: str
    num_envs: int
    observations: tuple[StepTensor, ...]
    memory_size: int
    outputs_size: int = 0


class ActStep(msgspec.Struct, frozen=True, eq=False):
    """A request for actions. ``seed``: they are drawn from it. ``observations`` and ``memory``: joined bytes."""

    number: int
    seed: int
    observations: bytes
    memory: bytes


class ActedStep(msgspec.Struct, frozen=True, eq=False):
    """The answer: recorded actions (N, *action_shape), their logprobs (N,), the state after the step (N, M).

    ``outputs``: (N, P) where the actor draws the actions; ``actions`` and ``logprobs`` are empty then.
    """

    number: int
    version: PolicyVersion
    actions: Array
    logprobs: NDArray[np.float32]
    memory: Array
    outputs: Array = NO_OUTPUTS


class ActingPolicy(msgspec.Struct, frozen=True):
    """The policy that the service acts with from now on, and the lineages of the run."""

    version: PolicyVersion
    tree: LineageTree


class StepLayout:
    """The bytes of observations, states and answers of ``num_envs`` environments."""

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        *,
        num_envs: int,
        memory_size: int,
        action_shape: tuple[int, ...],
        action_dtype: str,
        outputs_size: int = 0,
    ) -> None:
        """``leaves``: of ``core.spaces.observation_leaves``; the action is one as segments record it.

        ``outputs_size``: P.
        """
        self.tensors = tuple(
            StepTensor(name, recorded_dtype(leaf), recorded_shape(leaf)) for name, leaf in leaves.items()
        )
        self.num_envs = num_envs
        self.memory_size = memory_size
        self.outputs_size = outputs_size
        self._num_drawn = 0 if outputs_size else num_envs
        self._action = StepTensor("actions", action_dtype, action_shape)
        self._observation_bytes = num_envs * sum(tensor.num_bytes for tensor in self.tensors)

    @classmethod
    def of(cls, policy: StepPolicy, *, num_envs: int) -> "StepLayout":
        """The layout of a policy's steps. An actor that explores draws the actions from the outputs."""
        draws = isinstance(policy.actions, EpsilonGreedy)
        return cls(
            policy.observations,
            num_envs=num_envs,
            memory_size=policy.memory_size,
            action_shape=policy.actions.action_shape,
            action_dtype=policy.actions.action_dtype,
            outputs_size=policy.actions.num_outputs if draws else 0,
        )

    @property
    def request_bytes(self) -> int:
        """Of a request's tensors."""
        return self._observation_bytes + 4 * self.num_envs * self.memory_size

    def opening(self, *, run_id: str, instance: str) -> ActOpening:
        """The first message of an actor with this layout."""
        return ActOpening(run_id, instance, self.num_envs, self.tensors, self.memory_size, self.outputs_size)

    def check_size(self) -> None:
        """Check that a request fits a message.

        Raises:
            ConfigError: it does not.
        """
        if self.request_bytes > STEP_BYTES_MAX:
            raise ConfigError(
                f"One step of {self.num_envs} environments has {self.request_bytes} bytes of observations",
                why=f"a request to the inference service has at most {STEP_BYTES_MAX}",
                fix=f"set workload.num_envs to {max(1, self.num_envs * STEP_BYTES_MAX // self.request_bytes)}",
            )

    def join(self, observations: Mapping[str, Array]) -> bytes:
        """The bytes of observations (N, *leaf shape) by name."""
        return b"".join(
            [np.ascontiguousarray(observations[tensor.name]).data.cast("B") for tensor in self.tensors]
        )

    def split(self, data: bytes) -> dict[str, Array]:
        """Observations from their bytes, as views of them.

        Raises:
            RecordError: ``data`` has another size.
        """
        size = self._observation_bytes
        if len(data) != size:
            raise RecordError(
                f"A step's observations have {len(data)} bytes, and {self.num_envs} environments have {size}",
                why="the message was truncated, or its sender has another environment",
            )
        found: dict[str, Array] = {}
        offset = 0
        for tensor in self.tensors:
            count = self.num_envs * math.prod(tensor.shape)
            flat = np.frombuffer(data, tensor.dtype, count=count, offset=offset)
            found[tensor.name] = flat.reshape(self.num_envs, *tensor.shape)
            offset += flat.nbytes
        return found

    def memory(self, data: bytes) -> Array:
        """The states (N, M) from their bytes.

        Raises:
            RecordError: ``data`` has another size.
        """
        return _rows(StepTensor("memory", "float32", (self.memory_size,)), data, num_rows=self.num_envs)

    def acted(
        self,
        number: int,
        version: PolicyVersion,
        *,
        actions: bytes,
        logprobs: bytes,
        memory: bytes,
        outputs: bytes,
    ) -> ActedStep:
        """An answer from its bytes.

        Raises:
            RecordError: a part has another size, or no version acted.
        """
        if not version.lineage:
            raise RecordError(f"Answer {number} of the inference service names no policy")
        return ActedStep(
            number,
            version,
            _rows(self._action, actions, num_rows=self._num_drawn),
            _rows(StepTensor("logprobs", "float32", ()), logprobs, num_rows=self._num_drawn),
            self.memory(memory),
            _rows(StepTensor("outputs", "float32", (self.outputs_size,)), outputs, num_rows=self.num_envs),
        )


def _rows(tensor: StepTensor, data: bytes, *, num_rows: int) -> Array:
    size = num_rows * tensor.num_bytes
    if len(data) != size:
        raise RecordError(
            f"A step's {tensor.name} have {len(data)} bytes, and {num_rows} environments have {size}",
            why="the message was truncated, or its sender has another policy",
        )
    return np.frombuffer(data, tensor.dtype).reshape(num_rows, *tensor.shape)
