"""``tidegate credentials``: generate the broker users' passwords inside the cluster; the chart never renders one.

The chart renders a Secret without data, so that every render is the same, and a Job that may read and patch this one
Secret fills it. Existing keys are kept: an upgrade changes no password, and a removed key gets a new one.
"""

import asyncio
import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from tidegate.admission.kubernetes.api import Api, DeniedError, connect
from tidegate.admission.kubernetes.objects import Meta
from tidegate.core.errors import ConfigError, ConflictError, NotFoundError, UnavailableError

NAMESPACE_VARIABLE = "TIDEGATE_NAMESPACE"
PASSWORD_BYTES = 24
ATTEMPTS = 20
RETRY_S = 1.0
DEADLINE_S = 10.0
FIELD_MANAGER = "tidegate-credentials"

Read = Callable[[], Awaitable[tuple[Mapping[str, str], str]]]
Write = Callable[[Mapping[str, str], str], Awaitable[None]]


class _Secret(msgspec.Struct, frozen=True):
    """The fields of a ``v1`` Secret that are read here; ``data`` is base64, null while the Secret is empty."""

    metadata: Meta
    data: dict[str, str] | None = None


def credentials(
    secret: Annotated[str, typer.Option(help="Secret to fill, in the namespace of this pod.")],
    key: Annotated[list[str], typer.Option(help="A key that must hold a password; repeatable.")],
) -> None:
    """Fill the missing keys of a Secret with random passwords; existing keys are kept. Run by the chart's Job."""
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        raise ConfigError(
            f"{NAMESPACE_VARIABLE} is not set",
            why="this command runs in a pod",
            fix="let the chart's Job run it",
        )
    created = asyncio.run(_fill_in_cluster(secret, namespace=namespace, keys=key))
    typer.echo(f"{secret}: {len(created)} of {len(key)} passwords created")


def missing_passwords(present: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    """A new password for every missing key; safe in a shell, a URL and the broker's configuration.

    They begin with a letter: the broker reads an environment variable as a value of its configuration, where digits
    first would be a number.
    """
    return {key: f"p{secrets.token_hex(PASSWORD_BYTES)}" for key in keys if not present.get(key)}


async def fill(read: Read, write: Write, *, keys: Sequence[str], retry_s: float = RETRY_S) -> list[str]:
    """Read, add the missing keys, write unless the Secret changed meanwhile; returns the new keys.

    Raises:
        UnavailableError: all ``ATTEMPTS`` attempts failed.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            present, version = await read()
            created = missing_passwords(present, keys)
            if created:
                await write(created, version)
        except (ConflictError, DeniedError, NotFoundError, UnavailableError) as error:
            # Denied or not found: a new Role or Secret of this release may reach the API server with a delay.
            reason = f"{error.what}: {error.why}" if error.why else error.what
            await asyncio.sleep(retry_s)
        else:
            return list(created)
    raise UnavailableError(
        "The Secret could not be filled", why=reason, fix="see the Role of this pod's account"
    )


async def fill_secret(
    api: Api, secret: str, *, namespace: str, keys: Sequence[str], retry_s: float = RETRY_S
) -> list[str]:
    """Fill the keys of a Secret that have no password; returns the new keys.

    Raises:
        UnavailableError: all ``ATTEMPTS`` attempts failed.
        ConfigError: the API server does not accept the request.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"

    async def read() -> tuple[Mapping[str, str], str]:
        found = await api.get(path, _Secret)
        return found.data or {}, found.metadata.resource_version

    async def write(created: Mapping[str, str], version: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in created.items()}
        await api.patch(path, {"metadata": {"resourceVersion": version}, "data": data})

    return await fill(read, write, keys=keys, retry_s=retry_s)


async def _fill_in_cluster(secret: str, *, namespace: str, keys: Sequence[str]) -> list[str]:
    api = await connect(deadline_s=DEADLINE_S, in_cluster=True, field_manager=FIELD_MANAGER)
    try:
        return await fill_secret(api, secret, namespace=namespace, keys=keys)
    finally:
        await api.close()
