"""The ``admission`` section of a run file."""

from typing import Annotated

import msgspec

from tidegate.core.scaling import ScalingConfig

MIB = 1024 * 1024


class KubernetesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often the cluster is asked and told, where admission has access to one (TIDEGATE_KUBERNETES=1).

    ``sync_s`` (seconds): how often named objects are read and acted upon: the Lease, Deployments, the TrainingRun.
    ``relist_s`` (seconds): how often all actors' pods are read, and hence the longest that their ranks are behind.
    ``deadline_s`` (seconds): after it a request has failed; ``backoff_s_max``: the longest wait after a failure.
    ``lease_s`` (seconds): a leader that was silent for so long may be followed by another; at least three ``sync_s``.
    ``status_s`` (seconds): a TrainingRun's status is written at most so often, but at once when a condition changes.
    ``pod_patch_s`` (seconds): one pod's rank changes at most so often.
    """

    sync_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 5.0
    relist_s: Annotated[float, msgspec.Meta(ge=0.05, le=600.0)] = 30.0
    deadline_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 5.0
    backoff_s_max: Annotated[float, msgspec.Meta(ge=0.1, le=600.0)] = 60.0
    lease_s: Annotated[int, msgspec.Meta(ge=1, le=600)] = 20
    status_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)] = 10.0
    pod_patch_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 60.0


class AdmissionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often admission looks, over how long it judges, and when it slows down.

    ``tick_s`` (seconds): how often everything is looked at anew; a change of limits takes up to this long, and each
    tick asks the broker three questions.
    ``window_s`` (seconds): what a diagnosis is made from; below the time of two learner steps ratios jump between 0
    and 1, far above it the answer is about the past.
    ``limits_refresh_s`` (seconds): unchanged limits are published again this often, for a broker that lost them.
    ``resident_bytes_high`` (bytes): above this the bound on running rollouts shrinks in proportion, down to one batch:
    what the store holds beyond a few batches only grows stale. Keep it below trajectory_store.max_resident_bytes,
    where the store itself stops taking more.
    ``samples_file_bytes_max`` (bytes): size at which ``stats.jsonl`` is rotated (some four hours of samples).
    ``samples_files_kept`` (files): rotated files that stay; the oldest goes first.
    ``scaling``: how many actors there should be, and who sees to it. ``kubernetes``: the way to the cluster.
    """

    tick_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 1.0
    window_s: Annotated[float, msgspec.Meta(ge=1.0, le=600.0)] = 10.0
    limits_refresh_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 5.0
    resident_bytes_high: Annotated[int, msgspec.Meta(ge=MIB)] = 768 * MIB
    samples_file_bytes_max: Annotated[int, msgspec.Meta(ge=4096)] = 32 * MIB
    samples_files_kept: Annotated[int, msgspec.Meta(ge=1, le=9)] = 4
    scaling: ScalingConfig = ScalingConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
