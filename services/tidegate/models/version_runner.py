"""One version of a policy, ready to act: in an actor, and in the inference service.

Shapes: B environments, P outputs of the action distribution, M numbers of state (0 without memory).
"""

from collections.abc import Mapping

from tidegate.core.records import Array, PolicySnapshot
from tidegate.models.finite import check_finite
from tidegate.models.policy_port import MemoryPolicy, StepPolicy, VersionRunner


def check_snapshot(policy: StepPolicy, snapshot: PolicySnapshot) -> None:
    """Check that the tensors are this network's parameters, and finite.

    Raises:
        RecordError: a name, shape or dtype does not fit, or a value is not finite.
    """
    policy.check_params(snapshot.tensors)
    check_finite(snapshot)


def version_runner(policy: StepPolicy, params: Mapping[str, Array], *, threads: int) -> VersionRunner:
    """Prepare one version; see ``SegmentPolicy.runner``.

    Raises:
        NotFoundError: the policy has images, and onnxruntime is not installed.
    """
    if isinstance(policy, MemoryPolicy):
        return policy.stepper(params, threads=threads)
    run = policy.runner(params, threads=threads)
    return lambda observations, memory_BM: (run(observations), memory_BM)
