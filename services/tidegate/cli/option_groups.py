"""Options of a command in groups: a command takes dataclasses, and each of their fields is an option.

``@grouped`` gives ``def sim(run: RunOptions, fleet: FleetOptions)`` the flat signature that typer reads. A field is
typed ``Annotated[T, typer.Option(...)]`` and has a default.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints

import typer


def panel(name: str) -> Callable[..., Any]:
    """``typer.Option`` for the options of one panel of the help."""
    return partial(typer.Option, rich_help_panel=name)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command with one keyword option for each field of each group; the groups are built from them on a call."""
    groups = {name: kind for name, kind in get_type_hints(command).items() if name != "return"}
    options = {kind: get_type_hints(kind, include_extras=True) for kind in groups.values()}

    @wraps(command)
    def flat(**values: Any) -> None:
        command(**{
            name: kind(**{option: values[option] for option in options[kind]}) for name, kind in groups.items()
        })  # fmt: skip

    parameters = [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=options[kind][field.name]
        )
        for kind in groups.values()
        for field in fields(kind)
    ]
    flat.__dict__["__signature__"] = Signature(parameters)
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
