"""``tidegate credentials``: generate the broker users' passwords and the tokens of calls inside the cluster.

The chart never renders one: it renders Secrets without data, so that every render is the same, and a Job that may read
and patch these Secrets fills them. Existing keys are kept: an upgrade changes no password and no token, and a removed
key gets a new one. Tokens are rotated when the value of ``--rotation`` changes, passwords of ``--user`` when that of
``--password-rotation`` does.
"""

import asyncio
import base64
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.admission.kubernetes.objects import Meta
from tidegate.cli.broker_passwords import missing_passwords
from tidegate.cli.call_tokens import missing_call_tokens, new_call_token
from tidegate.core.errors import ConfigError, ConflictError, NotFoundError, UnavailableError
from tidegate.runtime.call_credentials import DIGESTS_FILE, write_credentials
from tidegate.runtime.files import replace_file
from tidegate.runtime.kubernetes_api import Api, DeniedError, connect
from tidegate.runtime.task_secret import TASKS_FILE, new_task_secret
from tidegate.wire.call_permissions import ROLES

NAMESPACE_VARIABLE = "TIDEGATE_NAMESPACE"
ATTEMPTS = 20
RETRY_S = 1.0
DEADLINE_S = 10.0
FIELD_MANAGER = "tidegate-credentials"

Read = Callable[[], Awaitable[tuple[Mapping[str, str], str]]]
Write = Callable[[Mapping[str, str], str], Awaitable[None]]
# From a Secret's values to those that it lacks.
Missing = Callable[[Mapping[str, str]], dict[str, str]]


class _Secret(msgspec.Struct, frozen=True):
    """The fields of a ``v1`` Secret that are read here; ``data`` is base64, null while the Secret is empty."""

    metadata: Meta
    data: dict[str, str] | None = None


def credentials(
    secret: Annotated[
        str, typer.Option(help="Secret to fill with passwords, in the namespace of this pod.")
    ] = "",
    user: Annotated[
        list[str] | None, typer.Option(help="A user whose password is made and rotated; repeatable.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="A key that must hold a password, made once; repeatable.")
    ] = None,
    password_rotation: Annotated[
        str,
        typer.Option(help="Rotate the users' passwords if this differs from the value of the last rotation."),
    ] = "",
    call_secret: Annotated[
        str, typer.Option(help="Secret to fill with the tokens of calls, in the namespace of this pod.")
    ] = "",
    rotation: Annotated[
        str,
        typer.Option(help="Rotate the tokens of calls if this differs from the value of the last rotation."),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Write new tokens of calls there, for a Secret of your own, and end.")
    ] = None,
) -> None:
    """Fill the missing keys of Secrets with random passwords and tokens. Run by the chart's Job."""
    if folder is not None:
        write_credentials(folder, {role: new_call_token() for role in ROLES})
        replace_file(folder / TASKS_FILE, f"{new_task_secret()}\n".encode(), mode=0o600)
        typer.echo(f"{folder}: a token for each of {len(ROLES)} roles, {DIGESTS_FILE} and {TASKS_FILE}")
        return
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        raise ConfigError(
            f"{NAMESPACE_VARIABLE} is not set",
            why="this command runs in a pod",
            fix="let the chart's Job run it, or write the tokens of calls to a --folder",
        )
    fills: dict[str, Missing] = {}
    if secret:
        fills[secret] = partial(
            missing_passwords, users=user or [], keys=key or [], rotation=password_rotation
        )
    if call_secret:
        fills[call_secret] = partial(missing_call_tokens, rotation=rotation, now_s=time.time())
    for name, created in asyncio.run(_fill_in_cluster(fills, namespace=namespace)).items():
        typer.echo(f"{name}: {len(created)} values written")


async def fill(read: Read, write: Write, *, missing: Missing, retry_s: float = RETRY_S) -> list[str]:
    """Read, add what is missing, write unless the Secret changed meanwhile; returns the written keys.

    Raises:
        UnavailableError: all ``ATTEMPTS`` attempts failed.
    """
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            present, version = await read()
            created = missing(present)
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
    api: Api, secret: str, *, namespace: str, missing: Missing, retry_s: float = RETRY_S
) -> list[str]:
    """Write what is missing in a Secret; returns the written keys.

    Raises:
        UnavailableError: all ``ATTEMPTS`` attempts failed.
        ConfigError: the API server does not accept the request.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"

    async def read() -> tuple[Mapping[str, str], str]:
        found = await api.get(path, _Secret)
        data = {key: base64.b64decode(value).decode() for key, value in (found.data or {}).items()}
        return data, found.metadata.resource_version

    async def write(created: Mapping[str, str], version: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in created.items()}
        await api.patch(path, {"metadata": {"resourceVersion": version}, "data": data})

    return await fill(read, write, missing=missing, retry_s=retry_s)


async def _fill_in_cluster(fills: Mapping[str, Missing], *, namespace: str) -> dict[str, list[str]]:
    api = await connect(deadline_s=DEADLINE_S, in_cluster=True, field_manager=FIELD_MANAGER)
    try:
        return {
            secret: await fill_secret(api, secret, namespace=namespace, missing=missing)
            for secret, missing in fills.items()
        }
    finally:
        await api.close()
