"""The section ``actor.server`` of the run file: the inference server that an actor's engine talks to."""

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86400.0)]


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An inference server (vLLM, SGLang) of this actor alone, because updates pause it.

    ``url``: of a server that you start yourself. ``python``: an interpreter that has vLLM installed; the actor then
    starts and stops the server itself, on a free port of loopback, and ignores ``url``. ``arguments``: for such a
    server, after those that the engine adds.
    ``update_dir``: a folder that actor and server see under the same path, with space for three copies of the model
    (the first, the served, the next version); empty: ``server-weights`` in the actor's data folder. Updates are fastest
    on an in-memory file system.
    ``probe``: ``local`` compares the server's logprobs with this actor's own model after each update, at the cost of
    one copy of the model in memory and one short pass for each version; ``none`` trusts the server. Servers have loaded
    wrong weights without an error (docs/engines.md), so keep ``local`` if there is enough memory.
    ``probe_tolerance``: mean difference of logprobs that the probe accepts; 0: the measured value for the dtype. Too
    small refuses good updates, too large accepts small errors.
    ``ready_deadline_s``: from a server's start, or its loss, to its first answer; then the engine fails.
    ``update_deadline_s``: for loading one version. ``control_deadline_s``: for any other control call.
    ``drain_deadline_s``: for the arrival of tokens that were generated before a pause; requests that are not complete
    by then continue as new ones from the tokens that arrived. ``stall_deadline_s``: seconds without a token of a
    request, including time in the server's queue and pauses; if it is shorter than those, requests fail needlessly.
    ``failures_max``: failed updates in a row after which the engine fails. ``retry_delay_s``: before a failed version
    is retried; a newer one is loaded at once.
    """

    url: str = "http://127.0.0.1:8000"
    python: str = ""
    arguments: tuple[str, ...] = ()
    update_dir: str = ""
    probe: Literal["local", "none"] = "local"
    probe_tolerance: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0
    ready_deadline_s: Seconds = 600.0
    update_deadline_s: Seconds = 120.0
    control_deadline_s: Seconds = 30.0
    drain_deadline_s: Seconds = 2.0
    stall_deadline_s: Seconds = 300.0
    failures_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    retry_delay_s: Seconds = 5.0
