"""Objects behind ``Api`` without a server: create, replace with its check of the resource version, patch, get."""

import json
from collections.abc import Mapping
from typing import Any

from tests.support.kubernetes import merged
from tidegate.core.errors import ConflictError, NotFoundError


class MemoryApi:
    """Objects by path; ``sent`` keeps the requests."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.sent: list[tuple[str, str, Any]] = []
        self._version = 0

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> bytes:
        """As an API server answers."""
        self.sent.append((method, path, body))
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                raise ConflictError(path)
            return self._put(path, body)
        if path not in self.objects:
            raise NotFoundError(path)
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
                raise ConflictError(path)
            return self._put(path, body)
        if method == "PATCH":
            return self._put(path, merged(self.objects[path], body))
        return json.dumps(self.objects[path]).encode()

    async def close(self) -> None:
        """There is nothing to close."""

    def _put(self, path: str, body: Any) -> bytes:
        self._version += 1
        kept = json.loads(json.dumps(body))
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = kept
        return json.dumps(kept).encode()
