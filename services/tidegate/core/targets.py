"""The target of a run (``--until``): statistics and the thresholds that they must reach."""

import difflib
import re
from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from tidegate.core.errors import ConfigError

Operator = Literal[">=", "<=", ">", "<"]

_CONDITION = re.compile(r"^([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)$")
EXAMPLE = "such as `mean_return>=475` or `version_step>=200 and mean_return>=400`"


class TargetCondition(msgspec.Struct, frozen=True):
    """One statistic against one number."""

    name: str
    operator: Operator
    threshold: float

    def holds(self, value: float | None) -> bool:
        """Whether ``value`` meets the condition; a statistic without a value does not."""
        if value is None:
            return False
        match self.operator:
            case ">=":
                return value >= self.threshold
            case "<=":
                return value <= self.threshold
            case ">":
                return value > self.threshold
            case "<":
                return value < self.threshold

    def __str__(self) -> str:
        """As ``--until`` takes it."""
        short = f"{self.threshold:g}"
        # All digits where six are another number: a run that goes on from 1,000,000 to 1,000,001 has another target.
        threshold = short if float(short) == self.threshold else repr(self.threshold)
        return f"{self.name}{self.operator}{threshold.removesuffix('.0')}"


class RunTarget(msgspec.Struct, frozen=True):
    """Conditions that must hold at the same moment; none at all is a run without a target."""

    conditions: tuple[TargetCondition, ...] = ()

    def reached(self, values: Mapping[str, float]) -> bool:
        """Whether every condition holds; never true without a condition."""
        return bool(self.conditions) and all(each.holds(values.get(each.name)) for each in self.conditions)

    def __str__(self) -> str:
        """As ``--until`` takes it."""
        return " and ".join(map(str, self.conditions))


def parse_target(text: str) -> RunTarget:
    """Read ``name>=number`` conditions joined by ``and``; an empty text is no target.

    Raises:
        ConfigError: a part is no condition.
    """
    if not text.strip():
        return RunTarget()
    conditions: list[TargetCondition] = []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = _CONDITION.match(part.strip())
        if match is None:
            raise ConfigError(
                f"Target {part.strip()!r} cannot be read",
                why="it must be a statistic, one of >= <= > <, and a number",
                fix=f"write it {EXAMPLE}",
            )
        conditions.append(TargetCondition(match[1], cast("Operator", match[2]), float(match[3])))
    return RunTarget(tuple(conditions))


def unknown_statistic_hint(name: str, values: Mapping[str, float]) -> str:
    """A warning about a statistic that no service declares, with the nearest name: a typo would never be reached."""
    close = difflib.get_close_matches(name, [each for each in values if "." not in each], n=1)
    return f"no service publishes {name}" + (f"; did you mean {close[0]}?" if close else "")
