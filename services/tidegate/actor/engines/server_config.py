"""The section ``actor.server`` of the run file: the inference server that an actor's engine talks to."""

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86400.0)]


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An inference server (vLLM, SGLang) of this actor alone: what pauses and updates it must have no other user.

    ``url``: where it listens, when somebody else starts it. ``python``: an interpreter that has vLLM installed; the
    actor then starts the server itself, on a free port of loopback, and ends it; ``url`` is not read. ``arguments``:
    for such a server, behind those that the engine needs.
    ``update_dir``: a folder that actor and server see under the same path, with room for three copies of the model
    (the start, the version served, the next one); empty takes ``server-weights`` in the actor's data folder. On a
    file system in memory an update is as fast as it can be.
    ``probe``: ``local`` compares the server's logprobs with this actor's own model after each update, for one copy of
    the model in memory and one short pass a version; ``off`` believes the server. Servers have loaded wrong weights
    without a word (docs/engines.md), so leave it on wherever the memory is to be had.
    ``probe_tolerance``: logprobs that may differ on average over the probe; 0 takes what was measured for the dtype.
    Too small refuses good updates, too large lets small errors pass.
    ``ready_deadline_s``: from a server's start, or its loss, to its first answer; then the engine fails.
    ``update_deadline_s``: for loading one version. ``control_deadline_s``: for any other call that steers the server.
    ``drain_deadline_s``: for the tokens made before a pause to arrive; what has not proven complete by then goes on as
    a new request, from the tokens that did arrive. ``stall_deadline_s``: without any token of a request, which waits in
    the server's queue and through its pauses; below the time of those, requests fail for nothing.
    ``failures_max``: updates that may fail in a row before the engine does. ``retry_delay_s``: before a version that
    failed is tried again; a newer one is tried at once.
    """

    url: str = "http://127.0.0.1:8000"
    python: str = ""
    arguments: tuple[str, ...] = ()
    update_dir: str = ""
    probe: Literal["local", "off"] = "local"
    probe_tolerance: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0
    ready_deadline_s: Seconds = 600.0
    update_deadline_s: Seconds = 120.0
    control_deadline_s: Seconds = 30.0
    drain_deadline_s: Seconds = 2.0
    stall_deadline_s: Seconds = 300.0
    failures_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    retry_delay_s: Seconds = 5.0
