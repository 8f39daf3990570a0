"""The reward that a judge posts for an episode."""

import math
from typing import Annotated, Any, cast

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.core.json_text import NOT_JSON
from tidegate.wire.bounds import MAGNITUDE_MAX, is_summable

COMPONENTS_MAX = 64
LOG_CHARS_MAX = 8192


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


def read_reward(body: bytes) -> Reward:
    """A posted reward.

    Fields besides its own are kept: numbers as components, ``metrics.turns`` for one in a section, anything else as
    JSON in the log.

    Raises:
        RefusedCallError: it is no reward, or holds more than its bounds.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
        own = {name: given.pop(name) for name in Reward.__struct_fields__ if name in given}
        numbers, rest = _apart(given)
        if numbers:
            own["components"] = {**numbers, **own.get("components", {})}
        if rest:
            own["log"] = "\n".join(filter(None, (own.get("log", ""), msgspec.json.encode(rest).decode())))
        return msgspec.convert(own, Reward)
    except (*NOT_JSON, TypeError, OverflowError) as error:  # an integer may have any length
        raise RefusedCallError("The body is no reward", why=str(error), fix='send {"reward": 1.0}') from error


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
