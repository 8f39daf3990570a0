"""From a turn of the policy to an action of an OpenEnv environment, by the JSON schema that its server publishes."""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from tidegate.core.errors import ConfigError

# Every action of OpenEnv has it; none needs it.
_OPTIONAL = "metadata"
AS_JSON = "json"


class NoActionError(ValueError):
    """A text is no action of the environment; the message is for the policy."""


class ActionReader:
    """Reads turns as actions of one schema."""

    def __init__(
        self, schema: Mapping[str, Any], *, field: str, fixed: Mapping[str, Any], pattern: str = ""
    ) -> None:
        """``field``: that a turn is; empty: the one that the schema demands. ``fixed``: in every action.

        ``pattern``: the action in a turn, with at most one group; empty: all of it.

        Raises:
            ConfigError: the schema has no such field.
        """
        self._fixed = dict(fixed)
        self._pattern = re.compile(pattern) if pattern else None
        fields = {name: part for name, part in _parts(schema, "properties").items() if name != _OPTIONAL}
        unknown = next((name for name in (*fixed, *filter(None, [field])) if name not in fields), None)
        if unknown is not None and unknown != AS_JSON:
            raise ConfigError(
                f"Actions of this environment have no field {unknown!r}",
                why=f"its server's schema has {', '.join(fields) or 'none'}",
                fix="correct workload.env_kwargs.action and .fixed",
            )
        demanded = [name for name in schema.get("required", ()) if name in fields and name not in fixed]
        open_fields = demanded or [name for name in fields if name not in fixed]
        self.field = field or (open_fields[0] if len(open_fields) == 1 else AS_JSON)
        self._schema: Mapping[str, Any] = (
            {} if self.field == AS_JSON else _resolved(schema, fields[self.field])
        )

    def read(self, text: str) -> dict[str, Any]:
        """The action.

        Raises:
            NoActionError: the text is none.
        """
        if self._pattern is not None:
            found = list(self._pattern.finditer(text))
            if not found:
                raise NoActionError("there is no action in it")
            text = found[-1][self._pattern.groups] or ""
        if self.field == AS_JSON:
            value = _json(text)
            if not isinstance(value, dict):
                raise NoActionError("an action is a JSON object")
            return {**cast("dict[str, Any]", value), **self._fixed}
        return {self.field: _value(self._schema, text), **self._fixed}


def _value(schema: Mapping[str, Any], text: str) -> Any:
    named: Any = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if named:
        by_text = {str(each).casefold(): each for each in named}
        found = by_text.get(text.strip().casefold())
        if found is None:
            raise NoActionError(f"an action is one of {', '.join(map(str, named))[:300]}")
        return found
    read = _READERS.get(str(schema.get("type", "string")), _json)
    try:
        return read(text)
    except NoActionError:
        raise
    except ValueError as error:
        raise NoActionError(f"an action is of type {schema.get('type')}") from error


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().casefold())
    if found is None:
        raise ValueError(text[:80])
    return found


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NoActionError("an action is JSON") from error


def _integer(text: str) -> int:
    if len(text.strip()) > 19:
        raise ValueError(text[:80])
    return int(text.strip())


_READERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "integer": _integer,
    "number": lambda text: float(text.strip()),
    "boolean": _boolean,
}


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema without its references: of alternatives the first that is not null."""
    for _ in range(8):
        options = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
        if "$ref" in part:
            name = str(part["$ref"]).rpartition("/")[2]
            part = _parts(_parts(schema, "$defs"), name)
        elif isinstance(options, list) and options:
            typed = cast("list[Mapping[str, Any]]", options)
            part = next((each for each in typed if each.get("type") != "null"), typed[0])
        else:
            break
    return part


def _parts(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = schema.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
