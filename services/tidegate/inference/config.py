"""The section ``inference`` of a run file."""

from typing import Annotated

import msgspec


class InferenceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Central inference, which a run has when ``actor.engine`` is ``inference_env``.

    ``batch_rows_max``: environments of one call of the network; a single actor may have more. ``batch_wait_ms``: how
    long a call waits for the steps of actors that are expected to ask soon; longer makes larger batches and slower
    steps. It never waits when all of them have asked. ``streams_max``: actors that are connected at once; further ones
    are refused and try again. ``idle_s``: seconds without a step after which a stream ends; its actor opens another
    one. ``threads``: threads of one operation of onnxruntime. ``pull_attempts``: as ``actor.pull_attempts``.
    """

    batch_rows_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1024
    batch_wait_ms: Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)] = 1.0
    streams_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    idle_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 300.0
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    pull_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
