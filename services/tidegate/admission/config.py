"""The ``admission`` section of a run file."""

from typing import Annotated

import msgspec

MIB = 1024 * 1024


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
    """

    tick_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 1.0
    window_s: Annotated[float, msgspec.Meta(ge=1.0, le=600.0)] = 10.0
    limits_refresh_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 5.0
    resident_bytes_high: Annotated[int, msgspec.Meta(ge=MIB)] = 768 * MIB
    samples_file_bytes_max: Annotated[int, msgspec.Meta(ge=4096)] = 32 * MIB
    samples_files_kept: Annotated[int, msgspec.Meta(ge=1, le=9)] = 4
