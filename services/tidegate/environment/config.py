"""The environment service's own section of the run file."""

from typing import Annotated, Literal

import msgspec

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0)]


class EnvironmentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How rollouts are scored and how many sessions may be open.

    ``slots``: groups scored at once by one worker; a slot is freed when its group's publish was acknowledged.
    ``max_ack_pending``: groups that all workers together may hold. ``ack_wait_s``: seconds without a heartbeat after
    which a group goes to another worker; must exceed a few broker round trips.
    ``score_deadline_s``: seconds a verifier has for one completion; past it ``on_error`` decides, so it is a choice of
    reward design. ``verifier_threads``: verifiers at work at once in this process, one thread each; a verifier that
    hangs keeps its thread. 0 scores in the event loop, for verifiers that are known to take microseconds: then the
    deadline is only noticed afterwards.
    ``on_error``: what a failed or late verifier means. ``zero`` rewards nothing and says so in the verifier log;
    ``drop`` drops the whole group as failed.
    ``cache_entries``: verdicts kept, least recently used out first; 0 scores everything anew.
    ``max_sessions``: open sessions; the next Reset is refused until one ends. ``session_idle_s``: seconds without a
    call after which a session is ended. ``session_deadline_s``: seconds that one reset or step may take.
    ``session_envs``: environments that live outside of Gymnasium's registry (``module:EnvId``) and may be opened by a
    call; naming a module imports it, which is why they are listed here.
    """

    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    max_ack_pending: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    score_deadline_s: PositiveSeconds = 2.0
    verifier_threads: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    on_error: Literal["zero", "drop"] = "zero"
    cache_entries: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 65_536
    max_sessions: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 64
    session_idle_s: PositiveSeconds = 60.0
    session_deadline_s: PositiveSeconds = 10.0
    session_envs: tuple[str, ...] = ()
