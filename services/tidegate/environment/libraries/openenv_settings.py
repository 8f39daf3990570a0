"""What a run file says of an OpenEnv server, besides its address."""

import re
from typing import Annotated, Any, Literal

import msgspec

from tidegate.core.errors import ConfigError

Field = Annotated[str, msgspec.Meta(max_length=256)]


class OpenEnvSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server, and how a policy that writes text plays it.

    ``url``: http:// or https:// with host, port and path; of ``workload.env``. ``turns_max``: of ``workload``.
    ``servers``: addresses of further servers of the same environment; episodes go to each in turn, and to another where
    one has no room or is away.
    ``seeds``: a problem of the run is a seed of ``reset``; so many there are, from ``first_seed``. All samples of a
    group have the same seed. ``reset``: further arguments of ``reset``.
    ``instructions``: text before the first observation.
    ``observation``: fields of the observation that the policy reads, in this order; none: a single text alone, else all
    fields as JSON.
    ``action``: the field of the action that a turn is; empty: the only field that the server demands; where it demands
    several, or for ``json``, a turn is the whole action as JSON. ``fixed``: further fields of every action.
    ``pattern``: the action in a turn: the last match of this regular expression, or the group in it; empty: all of it.
    ``reward``: of an episode: the ``sum`` of the rewards of its steps, or the ``last`` one. An episode whose turns are
    used up has it too.
    ``on_error``: when the server says that the environment failed in a step: ``fail`` the episode, as a verifier that
    fails, or ``reply`` with its message, for environments that refuse actions in this way.
    ``deadline_s``: for the answer to one message; ``environment.score_deadline_s`` must be longer.
    ``message_bytes_max``: of an answer. ``token_env``: environment variable with a bearer token; name it in
    ``pass_env`` too.
    """

    url: str
    turns_max: int = 1
    servers: Annotated[tuple[Field, ...], msgspec.Meta(max_length=256)] = ()
    seeds: Annotated[int, msgspec.Meta(ge=10, le=1_000_000)] = 1024
    first_seed: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    reset: dict[str, Any] = {}
    instructions: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    observation: Annotated[tuple[Field, ...], msgspec.Meta(max_length=64)] = ()
    action: Field = ""
    fixed: dict[str, Any] = {}
    pattern: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    reward: Literal["sum", "last"] = "sum"
    on_error: Literal["fail", "reply"] = "fail"
    deadline_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 10.0
    message_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=1 << 26)] = 1 << 20
    token_env: str = ""

    def __post_init__(self) -> None:
        """Refuse another kind of address, and a pattern that is none.

        Raises:
            ConfigError: one of them is.
        """
        try:
            num_groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ConfigError(
                f"workload.env_kwargs.pattern {self.pattern!r} is no regular expression", why=str(error)
            ) from error
        if num_groups > 1:
            raise ConfigError(
                f"workload.env_kwargs.pattern {self.pattern!r} has {num_groups} groups",
                fix="leave one group, or none; (?:...) is not counted",
            )
        for url in (self.url, *self.servers):
            if not url.startswith(("http://", "https://")):
                raise ConfigError(
                    f"{url[:200]!r} is no address of an OpenEnv server",
                    fix="write workload.env as openenv:http://host:port, and workload.env_kwargs.servers as [http://host:port]",
                )
