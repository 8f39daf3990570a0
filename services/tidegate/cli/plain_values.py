"""Texts, paths and flags of the command line without typer's conversion, which imports pydantic to copy a text.

Measured: 0.46 CPU-seconds, on a busy machine, before `tidegate up` forks for the first time.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

# Where typer keeps the conversion of a parameter, which it makes at the first value.
_CONVERSION = "_runtime_param"


class _PlainValue:
    """The conversion of one value, or of each value of a repeatable option or argument."""

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self._convert = convert

    def coerce(self, value: Any, param: TyperArgument | TyperOption, ctx: object) -> Any:
        """The value for the command's function; as typer, () for a repeatable one that is absent."""
        del ctx
        if param.multiple or param.nargs != 1:
            return [self._convert(each) for each in value or ()] or ()
        return None if value is None else self._convert(value)


def _as_it_is(value: Any) -> Any:
    """Of a flag, which the parser has read."""
    return value


def _path(text: str) -> Path:
    """Of ``--dir=~/runs/a`` too, where a shell leaves the ``~`` and a folder of that name would be made."""
    return Path(os.path.expanduser(text))


_CONVERSIONS: dict[object, Callable[[Any], Any]] = {
    str: str,
    Path: _path,
    list[str]: str,
    bool: _as_it_is,
}


def keep_plain_values(group: TyperGroup, command: TyperCommand) -> None:
    """Convert texts, paths and flags of ``group`` and of its ``command`` here; numbers and others stay with typer."""
    context = typer.Context(group, **group.context_settings)
    parameters = [
        *group.get_params(context),
        *command.get_params(typer.Context(command, parent=context, **command.context_settings)),
    ]
    for parameter in parameters:
        if isinstance(parameter, TyperArgument | TyperOption):
            convert = _CONVERSIONS.get(parameter.type_descriptor.annotation)
            if convert is not None:
                setattr(parameter, _CONVERSION, _PlainValue(convert))
