"""The rewards that a judge posts: of an episode, and of a whole group."""

import math
from typing import Annotated, Any, cast

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.core.json_text import NOT_JSON
from tidegate.wire.bounds import GROUP_SIZE_MAX, MAGNITUDE_MAX, is_summable

COMPONENTS_MAX = 64
LOG_CHARS_MAX = 8192
# Of the reason why an episode has no reward.
WHY_CHARS_MAX = 500
# What reading a body that is no reward raises: an integer may have any length.
_NO_REWARD = (*NOT_JSON, TypeError, OverflowError)


class Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an episode was worth.

    Raises:
        ValueError: a learner cannot compute with a number.
    """

    reward: float
    components: Annotated[dict[str, float], msgspec.Meta(max_length=COMPONENTS_MAX)] = {}
    log: Annotated[str, msgspec.Meta(max_length=LOG_CHARS_MAX)] = ""

    def __post_init__(self) -> None:
        """A reward that float32 cannot sum makes the advantages of the whole group invalid."""
        if not all(map(is_summable, (self.reward, *self.components.values()))):
            raise ValueError(f"the reward and its components must be finite and below {MAGNITUDE_MAX:g}")


class NoReward(msgspec.Struct, frozen=True):
    """In the place of a reward: ``why`` an episode of a group has none."""

    why: str


class _GroupRewards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rewards: Annotated[dict[str, dict[str, Any] | str], msgspec.Meta(max_length=GROUP_SIZE_MAX)]


def read_reward(body: bytes) -> Reward:
    """A posted reward.

    Fields besides its own are kept: numbers as components, ``metrics.turns`` for one in a section, anything else as
    JSON in the log.

    Raises:
        RefusedCallError: it is no reward, or holds more than its bounds.
    """
    try:
        return _reward_of(msgspec.json.decode(body, type=dict[str, Any]))
    except _NO_REWARD as error:
        raise RefusedCallError("The body is no reward", why=str(error), fix='send {"reward": 1.0}') from error


def read_group_rewards(body: bytes) -> dict[str, Reward | NoReward]:
    """The posted rewards of a group by episode id; a text is the reason of an episode that has none.

    Raises:
        RefusedCallError: one of them is no reward, or holds more than its bounds.
    """
    try:
        posted = msgspec.json.decode(body, type=_GroupRewards).rewards
        return {
            name: NoReward(given[:WHY_CHARS_MAX]) if isinstance(given, str) else _reward_of(given)
            for name, given in posted.items()
        }
    except _NO_REWARD as error:
        raise RefusedCallError(
            "The body holds no rewards of a group",
            why=str(error),
            fix='send {"rewards": {"EPISODE_ID": {"reward": 1.0}, "ANOTHER": "why it has none"}}',
        ) from error


def _reward_of(given: dict[str, Any]) -> Reward:
    own = {name: given.pop(name) for name in Reward.__struct_fields__ if name in given}
    numbers, rest = _apart(given)
    if numbers:
        own["components"] = {**numbers, **own.get("components", {})}
    if rest:
        own["log"] = "\n".join(filter(None, (own.get("log", ""), msgspec.json.encode(rest).decode())))
    return msgspec.convert(own, Reward)


def _apart(fields: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The numbers of further fields, by name, and what is no number."""
    numbers: dict[str, float] = {}
    rest: dict[str, Any] = {}
    for name, value in fields.items():
        parts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if isinstance(value, (int, float)) and math.isfinite(value):
            numbers[name] = float(value)
        elif parts and all(isinstance(part, (int, float)) and math.isfinite(part) for part in parts.values()):
            numbers |= {f"{name}.{part_name}": float(part) for part_name, part in parts.items()}
        else:
            rest[name] = value
    return numbers, rest
