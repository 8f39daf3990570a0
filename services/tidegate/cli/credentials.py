"""``tidegate credentials``: passwords for the broker's users, made inside of the cluster and never rendered.

The chart renders a Secret without data, so that every render is the same, and a Job that may read and patch this one
Secret fills it. Keys that are there stay: an upgrade changes no password, and a key that was taken out gets a new one.
"""

import asyncio
import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from tidegate.core.errors import ConfigError, ConflictError, UnavailableError

NAMESPACE_VARIABLE = "TIDEGATE_NAMESPACE"
PASSWORD_BYTES = 24
ATTEMPTS = 20
RETRY_S = 1.0
# What the API server answers when somebody else wrote first, and when our Role is not in force yet.
HTTP_CONFLICT, HTTP_FORBIDDEN, HTTP_NOT_FOUND = 409, 403, 404

Read = Callable[[], Awaitable[tuple[Mapping[str, str], str]]]
Write = Callable[[Mapping[str, str], str], Awaitable[None]]


def credentials(
    secret: Annotated[str, typer.Option(help="The Secret to fill, in this pod's namespace.")],
    key: Annotated[list[str], typer.Option(help="A key that must hold a password; once for each.")],
) -> None:
    """Give every key of a Secret that has none a random password; what is there stays. Made for the chart's Job."""
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        raise ConfigError(
            f"{NAMESPACE_VARIABLE} is not set",
            why="this command runs in a pod",
            fix="let the chart's Job run it",
        )
    made = asyncio.run(_fill_in_cluster(secret, namespace=namespace, keys=key))
    typer.echo(f"{secret}: {len(made)} of {len(key)} passwords made")


def missing_passwords(present: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    """A new password for every key that has none; safe in a shell, a URL and the broker's configuration.

    They begin with a letter: the broker reads an environment variable as a value of its configuration, where digits
    first would be a number.
    """
    return {key: f"p{secrets.token_hex(PASSWORD_BYTES)}" for key in keys if not present.get(key)}


async def fill(read: Read, write: Write, *, keys: Sequence[str], retry_s: float = RETRY_S) -> list[str]:
    """Read, add what is missing, write if nobody wrote meanwhile; returns the keys that were made.

    Raises:
        UnavailableError: it did not work in any of ``ATTEMPTS`` attempts.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            present, version = await read()
            made = missing_passwords(present, keys)
            if made:
                await write(made, version)
        except (ConflictError, UnavailableError) as error:
            reason = str(error)
            await asyncio.sleep(retry_s)
        else:
            return list(made)
    raise UnavailableError(
        "The Secret could not be filled", why=reason, fix="see the Role of this pod's account"
    )


async def _fill_in_cluster(secret: str, *, namespace: str, keys: Sequence[str]) -> list[str]:
    import kubernetes_asyncio

    kubernetes: Any = kubernetes_asyncio  # untyped as a whole
    client = kubernetes.client
    kubernetes.config.load_incluster_config()
    async with client.ApiClient() as connection:
        api = client.CoreV1Api(connection)

        async def read() -> tuple[Mapping[str, str], str]:
            try:
                found = await api.read_namespaced_secret(secret, namespace)
            except (client.ApiException, OSError) as error:
                raise _translated(error) from error
            return dict(found.data or {}), str(found.metadata.resource_version)

        async def write(made: Mapping[str, str], version: str) -> None:
            data = {key: base64.b64encode(value.encode()).decode() for key, value in made.items()}
            body = {"metadata": {"resourceVersion": version}, "data": data}
            try:
                await api.patch_namespaced_secret(
                    secret, namespace, body, _content_type="application/merge-patch+json"
                )
            except (client.ApiException, OSError) as error:
                raise _translated(error) from error

        return await fill(read, write, keys=keys)


def _translated(error: Exception) -> ConflictError | UnavailableError:
    status = getattr(error, "status", None)
    reason = str(getattr(error, "reason", error))
    if status == HTTP_CONFLICT:
        return ConflictError("The Secret was changed meanwhile", why=reason)
    # The API server may see a new Role a moment later than us; the Secret itself comes in the same release.
    known = {HTTP_FORBIDDEN: "not allowed (yet)", HTTP_NOT_FOUND: "it is not there (yet)"}
    return UnavailableError("The Secret cannot be used", why=known.get(status or 0, reason))
