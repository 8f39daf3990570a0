"""One step of an actor's environments between it and the inference service: tensors as raw bytes in a fixed order.

The layout follows from the environment's description, which both sides have, so that a message holds no names. Shapes:
N environments, M numbers of a policy's state (0 without memory).
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
from tidegate.models.policy_port import SegmentPolicy

# Of one request, below the limit of gRPC messages (``runtime.rpc``).
STEP_BYTES_MAX = 7 * 1024 * 1024


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


class ActStep(msgspec.Struct, frozen=True, eq=False):
    """A request for actions. ``seed``: they are drawn from it. ``observations`` and ``memory``: joined bytes."""

    number: int
    seed: int
    observations: bytes
    memory: bytes


class ActedStep(msgspec.Struct, frozen=True, eq=False):
    """The answer: recorded actions (N, *action_shape), their logprobs (N,), the state after the step (N, M)."""

    number: int
    version: PolicyVersion
    actions: Array
    logprobs: NDArray[np.float32]
    memory: Array


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
    ) -> None:
        """``leaves``: of ``core.spaces.observation_leaves``; the action is one as segments record it."""
        self.tensors = tuple(
            StepTensor(name, recorded_dtype(leaf), recorded_shape(leaf)) for name, leaf in leaves.items()
        )
        self.num_envs = num_envs
        self.memory_size = memory_size
        self._action = StepTensor("actions", action_dtype, action_shape)
        self._observation_bytes = num_envs * sum(tensor.num_bytes for tensor in self.tensors)

    @classmethod
    def of(cls, policy: SegmentPolicy, *, num_envs: int) -> "StepLayout":
        """The layout of a policy's steps."""
        return cls(
            policy.observations,
            num_envs=num_envs,
            memory_size=policy.memory_size,
            action_shape=policy.actions.action_shape,
            action_dtype=policy.actions.action_dtype,
        )

    @property
    def request_bytes(self) -> int:
        """Of a request's tensors."""
        return self._observation_bytes + 4 * self.num_envs * self.memory_size

    def opening(self, *, run_id: str, instance: str) -> ActOpening:
        """The first message of an actor with this layout."""
        return ActOpening(run_id, instance, self.num_envs, self.tensors, self.memory_size)

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
        return self._rows(StepTensor("memory", "float32", (self.memory_size,)), data)

    def acted(
        self, number: int, version: PolicyVersion, *, actions: bytes, logprobs: bytes, memory: bytes
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
            self._rows(self._action, actions),
            self._rows(StepTensor("logprobs", "float32", ()), logprobs),
            self.memory(memory),
        )

    def _rows(self, tensor: StepTensor, data: bytes) -> Array:
        size = self.num_envs * tensor.num_bytes
        if len(data) != size:
            raise RecordError(
                f"A step's {tensor.name} have {len(data)} bytes, and {self.num_envs} environments have {size}",
                why="the message was truncated, or its sender has another policy",
            )
        return np.frombuffer(data, tensor.dtype).reshape(self.num_envs, *tensor.shape)
