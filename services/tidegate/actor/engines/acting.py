"""Who acts in a segment's environments: the port, and the policy in this process.

Shapes: N environments, P outputs of the policy, M numbers of its state (0 without memory).
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.actor.engines.port import EngineControl
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Task
from tidegate.models.policy_port import SegmentPolicy, VersionRunner
from tidegate.models.version_runner import check_snapshot, version_runner


class Actions(NamedTuple):
    """One step of N environments: recorded actions (N, *action_shape), their logprobs (N,), the state after it (N, M).

    ``version``: the policy that acted.
    """

    actions: Array
    logprobs: NDArray[np.float32]
    memory: Array
    version: PolicyVersion


class Outputs(NamedTuple):
    """What the policy gives for one step of N environments: outputs (N, P) and the state after it (N, M).

    ``version``: the policy that acts.
    """

    outputs: NDArray[np.float32]
    memory: Array
    version: PolicyVersion


class Acting(Protocol):
    """Chooses actions. All calls but ``check_policy`` come from the engine's thread."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """As ``engines.port.Engine``."""
        ...

    def begin(self, task: Task) -> PolicyVersion:
        """A segment of ``task`` begins; returns the version that acts now."""
        ...

    def act(
        self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator
    ) -> Actions | None:
        """The actions for the next step; None when the segment ends here and is not to be recorded.

        Called again after None, it continues with the next segment.
        """
        ...

    def further_tensors(
        self, observations: Mapping[str, Array], memory_NM: Array, segment: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """What the record of a whole segment has besides its steps; None where it is not to be recorded.

        ``observations`` and ``memory_NM``: after the last step. ``segment``: the tensors of the steps.
        """
        ...


class GivesOutputs(Protocol):
    """Keeps a policy and gives its outputs, for who draws actions from them."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """See ``Acting``."""
        ...

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acting``."""
        ...

    def outputs(self, observations: Mapping[str, Array], memory_NM: Array) -> Outputs | None:
        """The outputs for one step; None as ``Acting.act``."""
        ...


class LocalActing:
    """The newest policy of ``EngineControl``, swapped between two steps."""

    def __init__(
        self, policy: SegmentPolicy, control: EngineControl, *, threads: int, one_version: bool
    ) -> None:
        """``one_version``: a segment keeps the version that it starts with."""
        self._policy = policy
        self._control = control
        self._threads = threads
        self._swaps = not one_version
        self._prepared: tuple[PolicySnapshot, VersionRunner] | None = None
        self._serving: tuple[PolicySnapshot, VersionRunner] | None = None

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check it, and prepare it beside the steps.

        Raises:
            RecordError: a name, shape or dtype does not fit, or a value is not finite.
            NotFoundError: the policy has images, and onnxruntime is not installed.
        """
        check_snapshot(self._policy, snapshot)
        self._prepared = snapshot, version_runner(self._policy, snapshot.tensors, threads=self._threads)

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acting``."""
        del task
        self._serving = self._serve_newest()
        return self._serving[0].version

    def act(self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator) -> Actions:
        """See ``Acting``; it never ends a segment."""
        outputs_NP, memory_NM, version = self.outputs(observations, memory_NM)
        actions, logprobs_N = self._policy.actions.sample(outputs_NP, rng)
        return Actions(actions, logprobs_N, memory_NM, version)

    def outputs(self, observations: Mapping[str, Array], memory_NM: Array) -> Outputs:
        """What ``act`` draws actions from."""
        serving = self._serving
        assert serving is not None, "a segment has begun"
        if self._swaps and self._control.newest is not serving[0]:
            serving = self._serving = self._serve_newest()
        snapshot, run = serving
        outputs_NP, memory_NM = run(observations, memory_NM)
        return Outputs(outputs_NP, memory_NM, snapshot.version)

    def further_tensors(
        self, observations: Mapping[str, Array], memory_NM: Array, segment: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``Acting``: nothing."""
        del observations, memory_NM, segment
        return {}

    def _serve_newest(self) -> tuple[PolicySnapshot, VersionRunner]:
        newest = self._control.newest
        assert newest is not None, "tasks start once there is a policy"
        prepared = self._prepared
        if prepared is None or prepared[0] is not newest:
            # Another version was checked since, or this one was not: it has to be prepared between two steps.
            prepared = newest, version_runner(self._policy, newest.tensors, threads=self._threads)
        if newest is not self._control.serving:
            self._control.swapped(newest, seconds=0.0)  # the arrays are used without a copy
        return prepared
