"""Addresses in object storage, and the environment variables that a process needs to reach one."""

from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from tidegate.core.errors import ConfigError

Scheme: TypeAlias = Literal["s3", "gs", "az", "file"]
# By scheme: beginnings of the variables that hold endpoint, region and credentials.
VARIABLES: dict[str, tuple[str, ...]] = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_", "IDENTITY_", "MSI_"),
    "file": (),
}


def scheme_of(url: str, *, setting: str) -> str:
    """The scheme of an address, which is checked; nothing is asked of the network.

    ``setting``: what the message begins with.

    Raises:
        ConfigError: it is no address of object storage, or holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in VARIABLES:
        raise ConfigError(
            f"{setting}: {parts.scheme or 'nothing'}:// is no object storage",
            fix=f"begin the address with {', '.join(f'{each}://' for each in VARIABLES)}",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"{setting} holds more than a place",
            why="credentials come from the environment, and the run folder keeps the address",
            fix=f"export variables such as {VARIABLES[parts.scheme][0] or 'AWS_'}..., and name the bucket and a prefix",
        )
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"{setting}: {url} is no absolute path", fix="write file:///path/of/a/folder")
    elif not parts.netloc:
        raise ConfigError(f"{setting}: {url} names no bucket", fix=f"write {parts.scheme}://bucket/prefix")
    return parts.scheme


def is_url(text: str) -> bool:
    """Whether a text is an address and no path."""
    return "://" in text


def parent_of_object(url: str) -> tuple[str, str]:
    """The place and the name of an object by its address."""
    place, _, name = url.rpartition("/")
    return place, name


def below(url: str, name: str) -> str:
    """The address of ``name`` below another."""
    return f"{url.rstrip('/')}/{name}"
