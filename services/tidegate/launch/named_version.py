"""A version of a policy as commands take it: ``newest``, or as ``lineage@step``."""

from tidegate.core.errors import ConfigError
from tidegate.core.ids import PolicyVersion, parse_version

NEWEST = "newest"


def version_of(text: str, *, option: str = "--version") -> PolicyVersion | None:
    """The version that ``option`` names; None is the newest.

    Raises:
        ConfigError: it is no version.
    """
    if text == NEWEST:
        return None
    try:
        return parse_version(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text} is no version", why=str(error)) from error
