"""What a run file says of an environment of `verifiers`, and what its processes are asked and answer."""

from typing import Any

import msgspec

from tidegate.runtime.prompt_sources import VERIFIERS

# The name that environments give the policy.
MODEL = "policy"


class VerifiersSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``id``: as in ``verifiers.load_environment(id, **arguments)``, the module of its package with ``-`` for ``_``."""

    id: str
    arguments: dict[str, Any] = {}

    @property
    def module(self) -> str:
        """The module that ``verifiers`` imports for the id."""
        return self.id.rpartition("/")[2].partition("@")[0].replace("-", "_")


def named_environment(env_id: str, arguments: dict[str, Any]) -> VerifiersSettings:
    """The settings of a ``workload.env`` with its ``env_kwargs``."""
    return VerifiersSettings(id=env_id.removeprefix(VERIFIERS), arguments=arguments)


class Seat(msgspec.Struct, frozen=True):
    """Where an environment finds the policy of one episode: an OpenAI-compatible address, and the key that opens it."""

    base_url: str
    api_key: str


class EpisodeVerdict(msgspec.Struct, frozen=True):
    """What an environment made of an episode: the body of a gateway's reward."""

    reward: float
    components: dict[str, float]
    log: str


class VerifiersQuestion(msgspec.Struct, frozen=True):
    """The episode to play. ``prompt_id``: of its problem. ``stub``: the text used as each turn of the policy."""

    settings: VerifiersSettings
    prompt_id: str
    stub: str
    files_dir: str


class PlayedVerifiers(msgspec.Struct, frozen=True):
    """How it ended, after ``num_calls`` of the policy."""

    verdict: EpisodeVerdict
    num_calls: int
    took_s: float
