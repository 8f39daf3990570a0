"""``--set path.to.key=value`` and the YAML behind run files."""

import re
from collections.abc import Hashable
from typing import Any, cast

import yaml

from tidegate.core.errors import ConfigError

EXAMPLE = "write it as --set staleness.max_lag=0"


class RunFileLoader(yaml.SafeLoader):
    """YAML in which ``1e-3`` is a number and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose keys are distinct.

        Raises:
            ConfigError: a key is repeated; YAML would silently keep the last.
        """
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                raise ConfigError(
                    f"Key `{key}` is given twice, in line {seen[key]} and in line {line}",
                    fix="remove one of them",
                )
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes 1e-3 for a text, as it asks for a dot and a sign; every learning rate stumbles over that.
cast("Any", RunFileLoader).add_implicit_resolver(  # untyped in the library
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, *, source: str) -> Any:
    """The value that ``text`` holds, with plain Python types only.

    Raises:
        ConfigError: it is no YAML; the sentence names ``source`` and the line.
    """
    try:
        return yaml.load(text, Loader=RunFileLoader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{source}{line} is not valid YAML", why=problem) from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.what}", fix=error.fix) from error


def apply_overrides(raw: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """A copy of ``raw`` with each ``path.to.key=value`` written into it; values are typed as in the file.

    Whether a path exists is checked against the run file's types afterwards, so that a typo gives the same error in a
    file and in an override.

    Raises:
        ConfigError: an override has no ``=``, an empty key, a value that is no YAML, or leads through a plain value.
    """
    result = _copy(raw)
    for override in overrides:
        path, separator, text = override.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            raise ConfigError(f"--set {override!r} is not path.to.key=value", fix=EXAMPLE)
        section = result
        for depth, key in enumerate(keys[:-1]):
            inner = section.setdefault(key, {})
            if not isinstance(inner, dict):
                reached = ".".join(keys[: depth + 1])
                raise ConfigError(f"--set {path}: `{reached}` is a value and has no fields", fix=EXAMPLE)
            section = cast("dict[str, Any]", inner)
        section[keys[-1]] = parse_yaml(text, source=f"--set {path}")
    return result


def _copy(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _copy(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in raw.items()
    }
