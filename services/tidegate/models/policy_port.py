"""The interface of every policy of segments: from named observations to outputs of a distribution, and values.

An actor and the learner build the same policy from the environment's description and the run file. Parameters are one
flat dict of float32 arrays by name, as published; the methods that compute are written once for numpy and torch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, Leaf
from tidegate.models.array_functions import ArrayModule
from tidegate.models.distributions import ActionDistribution, SampledActions

TensorT = TypeVar("TensorT")
# Observations of B environments by name, (B, *leaf shape), to outputs (B, P): one step of an actor.
PolicyRunner: TypeAlias = Callable[[Mapping[str, Array]], NDArray[np.float32]]
# The same with values (B,) beside the outputs.
PairRunner: TypeAlias = Callable[[Mapping[str, Array]], tuple[NDArray[np.float32], NDArray[np.float32]]]

# Of one version: observations by name and the state (B, M) before them, to outputs (B, P) and the state after; M is 0
# without memory.
VersionRunner: TypeAlias = Callable[[Mapping[str, Array], Array], tuple[Array, Array]]
# The same with values (B,) between the two.
PairStepper: TypeAlias = Callable[[Mapping[str, Array], Array], tuple[Array, Array, Array]]


class StepPolicy(Protocol):
    """What acting needs of a policy over the observations of one environment; it holds no parameters itself.

    ``observations``: the leaf behind each recorded tensor, by its name. Observations are mappings from these names to
    arrays (..., *leaf shape) as recorded.
    """

    @property
    def observations(self) -> dict[str, Leaf]:
        """By the names of the recorded tensors."""
        ...

    @property
    def actions(self) -> SampledActions:
        """What the outputs mean."""
        ...

    @property
    def memory_size(self) -> int:
        """Numbers of state that it carries from step to step; 0 for none, and see ``MemoryPolicy``."""
        ...

    def check_params(self, params: Mapping[str, Array]) -> None:
        """Check that ``params`` are parameters of this policy.

        Raises:
            RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
        """
        ...

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """``SegmentPolicy.action_outputs`` of one version, prepared; its arrays must not change while it is used.

        May take milliseconds, so that a call is fast: make it beside the steps, once a version. ``threads``: of one
        operation, where it uses them.
        """
        ...


class SegmentPolicy(StepPolicy, Protocol):
    """A policy and a value, which actors and learner build from the same description."""

    @property
    def description(self) -> EnvironmentDescription:
        """The environment that it was built for."""
        ...

    @property
    def actions(self) -> ActionDistribution:
        """What the outputs mean."""
        ...

    @property
    def has_statistics(self) -> bool:
        """Whether parameters contain running statistics of observations."""
        ...

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by name, in the order of computation."""
        ...

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters, float32."""
        ...

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """The parameters that an optimiser changes, in order: no scales and no statistics."""
        ...

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """The outputs (..., P) of the action distribution."""
        ...

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """The value (...) in units of the objective's ``value_scale``."""
        ...

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """Both, with what they share computed once."""
        ...

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The tensors of running statistics after these further observations (B, *leaf shape); empty without any."""
        ...


@runtime_checkable
class FeaturePolicy(SegmentPolicy, Protocol):
    """A policy whose outputs follow from features of an observation, which critics of actions read too.

    Shapes: B observations, F features.
    """

    @property
    def num_features(self) -> int:
        """F."""
        ...

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Features (B, F); ``xp`` is torch."""
        ...

    def outputs_of(self, params: Mapping[str, Any], features: Any, xp: ArrayModule) -> Any:
        """``action_outputs`` (B, P) of features; ``xp`` is torch."""
        ...

    def feature_parameters(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """Of ``trainable``, those that features depend on."""
        ...


@runtime_checkable
class MemoryPolicy(SegmentPolicy, Protocol):
    """A policy with a state: it refuses single observations without one, and has these instead.

    Shapes: P outputs, M numbers of state, R rows of packed sequences, Q sequences.
    """

    def stepper(self, params: Mapping[str, Array], *, threads: int = 1) -> VersionRunner:
        """One version for an actor, prepared; see ``SegmentPolicy.runner``."""
        ...

    def unrolled(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> tuple[Any, Any]:
        """Outputs (R, P) and values (R,) of whole sequences; ``xp`` is torch.

        ``observations``: (R, *leaf shape) in the order of ``memory_cells.unrolled``; ``memory_QM``: the state before
        each sequence.
        """
        ...

    def memory_after(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> Any:
        """The state (Q, M) after whole sequences; as ``unrolled``, without what only outputs need."""
        ...
