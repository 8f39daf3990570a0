"""The ``admission`` section of a run file."""

from typing import Annotated

import msgspec

from tidegate.core.scaling import ScalingConfig

MIB = 1024 * 1024


class KubernetesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Periods and deadlines of the Kubernetes adapter (used with TIDEGATE_KUBERNETES=1).

    ``sync_s`` (seconds): how often named objects are read and acted upon: the Lease, Deployments, the TrainingRun.
    ``relist_s`` (seconds): how often all actors' pods are read: the maximum delay of their ranks.
    ``deadline_s`` (seconds): timeout of a request; ``backoff_s_max``: the longest wait after a failure.
    ``lease_s`` (seconds): after this long without renewal another instance takes the Lease; at least three ``sync_s``.
    ``status_s`` (seconds): a TrainingRun's status is written at most this often, and when a condition changes.
    ``pod_patch_s`` (seconds): one pod's rank changes at most this often.
    """

    sync_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 5.0
    relist_s: Annotated[float, msgspec.Meta(ge=0.05, le=600.0)] = 30.0
    deadline_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 5.0
    backoff_s_max: Annotated[float, msgspec.Meta(ge=0.1, le=600.0)] = 60.0
    lease_s: Annotated[int, msgspec.Meta(ge=1, le=600)] = 20
    status_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)] = 10.0
    pod_patch_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 60.0


class AdmissionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often admission decides, over which window, and when it throttles.

    ``tick_s`` (seconds): period of a decision; a change of limits takes up to this long, and each tick
    sends the broker three requests.
    ``window_s`` (seconds): what a diagnosis covers; below the time of two learner steps ratios jump between 0
    and 1, far above it the diagnosis lags behind.
    ``limits_refresh_s`` (seconds): unchanged limits are published again this often, for a broker that lost them.
    ``resident_bytes_high`` (bytes): above this the bound on running rollouts shrinks in proportion, down to one batch:
    trajectories beyond a few batches only grow stale. Keep it below trajectory_store.max_resident_bytes,
    where the store itself rejects more.
    ``samples_file_bytes_max`` (bytes): size at which ``stats.jsonl`` is rotated (some four hours of samples).
    ``samples_files_kept`` (files): rotated files that are kept; the oldest is deleted first.
    ``scaling``: the recommended number of actors, and what applies it. ``kubernetes``: access to the cluster.
    """

    tick_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 1.0
    window_s: Annotated[float, msgspec.Meta(ge=1.0, le=600.0)] = 10.0
    limits_refresh_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 5.0
    resident_bytes_high: Annotated[int, msgspec.Meta(ge=MIB)] = 768 * MIB
    samples_file_bytes_max: Annotated[int, msgspec.Meta(ge=4096)] = 32 * MIB
    samples_files_kept: Annotated[int, msgspec.Meta(ge=1, le=9)] = 4
    scaling: ScalingConfig = ScalingConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
