"""The Kubernetes API as a handful of typed requests: JSON in, structs out, each with a deadline.

The official client (``kubernetes.aio``) finds the server, verifies it and renews the token. Its generated models are
not used: few fields of few kinds are read here, and structs define them. It is imported only when there is a cluster.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from tidegate.core.errors import ConfigError, ConflictError, NotFoundError, TidegateError, UnavailableError
from tidegate.core.json_text import NOT_JSON

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
# JSON is YAML.
APPLY_PATCH = "application/apply-patch+yaml"
PAGE_ITEMS = 500
# 20 pages are ten thousand pods: beyond that deletion costs are not worth the requests.
PAGES_MAX = 20
FIELD_MANAGER = "tidegate-admission"


class DeniedError(TidegateError):
    """The ServiceAccount lacks a permission."""

    status = "PERMISSION_DENIED"


class RbacRule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A PolicyRule of ``rbac.authorization.k8s.io/v1``."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()


class Sender(Protocol):
    """Sends one request: the official client, or a test's fake."""

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str
    ) -> bytes:
        """The body of a successful answer.

        Raises:
            TidegateError: any other status, or no answer in time.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class _Page(msgspec.Struct, frozen=True):
    """One page of a list with undecoded items. ``metadata.continue`` is the token of the next page."""

    items: list[msgspec.Raw] = []
    metadata: dict[str, Any] = {}


class Api:
    """Typed requests. Bounded by its callers, which wait for each answer."""

    def __init__(self, sender: Sender, *, field_manager: str = FIELD_MANAGER) -> None:
        """``sender`` is closed with this; ``field_manager`` owns the fields that are written."""
        self._sender = sender
        self._manager = {"fieldManager": field_manager}
        self.num_requests = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._sender.close()

    async def get(self, path: str, kind: type[T]) -> T:
        """One object.

        Raises:
            TidegateError: it does not exist, reading it is denied, or the API server did not answer.
        """
        return _decoded(await self._send("GET", path), kind, path)

    async def list_all(self, path: str, kind: type[T], *, selector: str = "") -> list[T]:
        """Every object of a list, page by page, up to ``PAGES_MAX``.

        Raises:
            TidegateError: as ``get``.
        """
        query = {"limit": str(PAGE_ITEMS)} | ({"labelSelector": selector} if selector else {})
        found: list[T] = []
        for _ in range(PAGES_MAX):
            page = _decoded(await self._send("GET", path, query), _Page, path)
            found += [_decoded(bytes(item), kind, path) for item in page.items]
            following = page.metadata.get("continue")
            if not following:
                break
            query["continue"] = str(following)
        return found

    async def create(self, path: str, body: object, kind: type[T]) -> T:
        """A new object.

        Raises:
            ConflictError: there is one of that name.
            TidegateError: as ``get``.
        """
        return _decoded(await self._send("POST", path, self._manager, body), kind, path)

    async def replace(self, path: str, body: object, kind: type[T]) -> T:
        """Replace the object; with a resourceVersion in it only if it was not changed since.

        Raises:
            ConflictError: it was changed since.
            TidegateError: as ``get``.
        """
        return _decoded(await self._send("PUT", path, self._manager, body), kind, path)

    async def patch(self, path: str, body: object) -> None:
        """Merge into the object.

        Raises:
            ConflictError: the body's resourceVersion is outdated.
            TidegateError: as ``get``.
        """
        await self._send("PATCH", path, self._manager, body, MERGE_PATCH)

    async def apply(self, path: str, body: object) -> None:
        """Apply the body server-side: its fields become this manager's, also those of others; all others stay.

        A field that this manager applied before and that the body no longer has is removed. ``body`` needs
        ``apiVersion``, ``kind`` and ``metadata``.

        Raises:
            TidegateError: as ``get``.
        """
        await self._send("PATCH", path, {**self._manager, "force": "true"}, body, APPLY_PATCH)

    async def delete(self, path: str, *, grace_s: int) -> None:
        """Delete the object, and then what it owns; a pod's processes get ``grace_s`` seconds to end by themselves.

        Raises:
            TidegateError: as ``get``.
        """
        body = {"gracePeriodSeconds": grace_s, "propagationPolicy": "Background"}
        await self._send("DELETE", path, None, body)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        self.num_requests += 1
        return await self._sender.send(method, path, query or {}, msgspec.to_builtins(body), content_type)


class ClientSender:
    """Sends through the official client's asyncio API."""

    def __init__(self, client: Any, *, deadline_s: float) -> None:
        """``client``: an ``ApiClient``, typed in part, closed with this.

        ``deadline_s`` bounds a request from connecting to the last byte.
        """
        self._client = client
        self._deadline_s = deadline_s

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str
    ) -> bytes:
        """See ``Sender``."""
        from aiohttp import ClientError

        what = f"{method} {path}"
        try:
            _, url, headers, sent, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(
                method, url, headers, sent, _request_timeout=self._deadline_s
            )
            data = cast("bytes", await answer.read())
        except (TimeoutError, ClientError, OSError) as error:
            raise UnavailableError(
                "The Kubernetes API does not answer", why=f"{what}: {str(error) or type(error).__name__}"
            ) from error
        if not 200 <= answer.status < 300:
            raise error_of(answer.status, _message(data), what)
        return data

    async def close(self) -> None:
        """See ``Sender``."""
        await self._client.close()


async def connect(
    *,
    deadline_s: float,
    in_cluster: bool,
    kubeconfig: str | None = None,
    field_manager: str = FIELD_MANAGER,
) -> Api:
    """The API of the cluster that this pod runs in, or of a kubeconfig (None: where kubectl looks, too).

    Raises:
        ConfigError: the kubernetes package is not installed, or no credentials are found.
    """
    configuration = await configured(in_cluster=in_cluster, kubeconfig=kubeconfig)
    from kubernetes.aio import client

    return Api(
        ClientSender(client.ApiClient(configuration), deadline_s=deadline_s), field_manager=field_manager
    )


async def configured(*, in_cluster: bool, kubeconfig: str | None) -> "Configuration":
    """Where the API server is and how to authenticate there, as the official client wants it.

    Raises:
        ConfigError: as ``connect``.
    """
    try:
        from kubernetes.aio import client, config
    except ImportError as error:
        raise ConfigError(
            "Kubernetes access needs the package kubernetes",
            fix="install tidegate[cluster], or unset TIDEGATE_KUBERNETES",
        ) from error
    configuration = client.Configuration()
    load = cast("Any", config)  # typed in part
    try:
        if in_cluster:
            load.load_incluster_config(configuration)
        else:
            await load.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError("There are no credentials for the Kubernetes API", why=str(error)) from error
    return configuration


def error_of(status: int, message: str, what: str) -> TidegateError:
    """The error for a status other than success."""
    match status:
        case 401 | 403:
            return DeniedError(
                f"The cluster denies {what}",
                why=message,
                fix="compare the account's Role with the one that the chart makes",
            )
        case 404:
            return NotFoundError(f"The cluster has no {what}", why=message)
        case 409:
            return ConflictError(f"Another writer was first: {what}", why=message)
        case _ if 400 <= status < 500 and status != 429:
            return ConfigError(f"The cluster does not take {what}", why=message)
        case _:
            return UnavailableError(f"The Kubernetes API answers {status} to {what}", why=message)


class _Status(msgspec.Struct, frozen=True):
    """The API server's ``Status`` object of a failed request."""

    message: str = ""


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Status).message
    except NOT_JSON:
        return ""


def _decoded(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except NOT_JSON as error:
        raise UnavailableError(f"The cluster's answer to {path} cannot be read", why=str(error)) from error
