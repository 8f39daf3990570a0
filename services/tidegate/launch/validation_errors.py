"""Errors of a run file for users: the file, the path of the key, the allowed values, and the nearest known key."""

import difflib
import re
import types
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from tidegate.core.errors import ConfigError

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*)`")
_MISSING = re.compile(r"missing required field `(?P<key>.*)`")
ANY_KEY = "..."
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([^.\[\]]+)")


def explain_validation(
    error: msgspec.ValidationError,
    value: object,
    kind: type[Any],
    *,
    source: str,
    path: str,
    also_allowed: tuple[str, ...] = (),
) -> ConfigError:
    """The error of a section with its fix.

    ``value`` was converted to ``kind``; ``path`` is its place in the document ("" for the root), and ``also_allowed``
    are the keys of that level that other types read.
    """
    match = _AT.match(str(error))
    problem, inner = (match["problem"], match["path"] or "$") if match else (str(error), "$")
    found_steps = [step[0] or step[1] for step in _STEP.findall(inner.removeprefix("$"))]
    steps = _with_keys(found_steps, value, kind)
    place = ".".join([*([path] if path else []), *steps])
    if isinstance(error.__cause__, ValueError):  # raised by the type itself, about several of its fields
        where = f"{place}: " if place else ""
        return ConfigError(f"{source}: {where}{problem}")
    hint = _chosen(_hint_at(kind, steps), _value_at(value, steps))
    if unknown := _UNKNOWN.search(problem):
        known = [*_fields(hint), *(also_allowed if not steps else ())]
        return _unknown_field(unknown["key"], known, place=place, source=source)
    if missing := _MISSING.search(problem):
        field = _hint_at(hint, [missing["key"]])
        name = f"{place}.{missing['key']}" if place else missing["key"]
        return ConfigError(f"{source}: `{name}` is missing", fix=f"it must be {_describe(field)}")
    found = _value_at(value, steps)
    return ConfigError(f"{source}: {place or 'the run file'} is {_show(found)}; it must be {_describe(hint)}")


def nearest(key: str, known: list[str]) -> str | None:
    """The known name that is closest to ``key``; None if none is close."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return close[0] if close else None


def _unknown_field(key: str, known: list[str], *, place: str, source: str) -> ConfigError:
    where = f"in {place}" if place else "in the run file"
    close = nearest(key, known)
    guess = f": did you mean `{close}`?" if close else "."
    return ConfigError(
        f"{source}: unknown field `{key}` {where}{guess} Known here are {', '.join(known) or 'no others'}"
    )


def _with_keys(steps: list[str], value: object, kind: type[Any]) -> list[str]:
    """``steps`` with the key of each mapping, for which msgspec writes three dots: the first whose value is refused."""
    named: list[str] = []
    for step in steps:
        mapping = _value_at(value, named)
        if step == ANY_KEY and isinstance(mapping, dict):
            hint = _hint_at(kind, [*named, step])
            items = cast("dict[Any, Any]", mapping).items()
            step = next((str(key) for key, each in items if not _fits(each, hint)), step)
        named.append(step)
    return named


def _fits(value: object, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _hint_at(hint: Any, steps: list[str]) -> Any:
    """The type hint at a path of field names and indices."""
    for step in steps:
        bare = _bare(hint)
        if tags := _tags(bare):
            with_field = [kind for kind in tags.values() if step in get_type_hints(kind)]
            hint = (
                Literal[tuple(tags)]
                if step == _tag_field(bare)
                else _hint_at((with_field or [Any])[0], [step])
            )
        elif _is_struct(bare):
            hint = get_type_hints(bare, include_extras=True).get(step, Any)
        else:
            arguments = [argument for argument in get_args(bare) if argument is not Ellipsis]
            hint = arguments[-1] if arguments else Any
    return hint


def _tags(hint: Any) -> dict[str, Any]:
    """The kinds of a union of Structs by their tags; empty for anything else."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    if not kinds or not all(_is_struct(kind) and kind.__struct_config__.tag is not None for kind in kinds):
        return {}
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


def _tag_field(hint: Any) -> str:
    return str(get_args(hint)[0].__struct_config__.tag_field)


def _chosen(hint: Any, value: object) -> Any:
    """The kind that the value's tag names, where the hint is a union of tagged Structs."""
    bare = _bare(hint)
    tags = _tags(bare)
    if not tags:
        return hint
    field = _tag_field(bare)
    tag = cast("dict[str, Any]", value).get(field) if isinstance(value, dict) else None
    return tags.get(str(tag), hint)


def _bare(hint: Any) -> Any:
    """Without ``Annotated`` and without ``| None``."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif get_origin(hint) in (Union, types.UnionType):
            options = [option for option in get_args(hint) if option is not type(None)]
            if len(options) != 1:
                return hint
            hint = options[0]
        else:
            return hint


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _fields(hint: Any) -> list[str]:
    bare = _bare(hint)
    if not _is_struct(bare):
        return []
    tag_field = bare.__struct_config__.tag_field
    return [*([tag_field] if tag_field else []), *bare.__struct_encode_fields__]


def _value_at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(step)
        elif isinstance(value, list) and step.isdigit():
            value = cast("list[Any]", value)[int(step)]
        else:
            return cast("Any", value)
    return value


def _show(value: Any) -> str:
    return "empty" if value is None else repr(value)


_PLAIN = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}


def _describe(hint: Any) -> str:
    """The type and range of a field, as text."""
    limits: list[str] = []
    not_empty = ""
    while get_origin(hint) is Annotated:
        limits += [
            text for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta) for text in _limits(meta)
        ]
        if any(isinstance(meta, msgspec.Meta) and meta.min_length for meta in get_args(hint)[1:]):
            not_empty = ", not empty"
        hint = get_args(hint)[0]
    bare = _bare(hint)
    origin = get_origin(bare)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(bare)))}"
    if _is_struct(bare):
        return f"a section with {', '.join(_fields(bare))}"
    if origin in (tuple, list):
        return f"a list, each {_describe(get_args(bare)[0])}{not_empty}"
    if origin is dict:
        return f"a mapping, each value {_describe(get_args(bare)[1])}"
    if tags := _tags(bare):
        return f"a section whose `{_tag_field(bare)}` is one of {', '.join(tags)}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(bare))
    name = _PLAIN.get(bare, getattr(bare, "__name__", str(bare)))
    return f"{name} {' and '.join(limits)}" if limits else name


def _limits(meta: msgspec.Meta) -> list[str]:
    named = ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt))
    texts = [f"{sign} {bound:g}" for sign, bound in named if bound is not None]
    if meta.pattern is not None:
        texts.append(meta.description or f"that matches {meta.pattern}")
    return texts
