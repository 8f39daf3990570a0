"""Answers of an API server, or of a proxy before it, that cannot be read."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.core.errors import UnavailableError
from tidegate.runtime.kubernetes_api import Api


class GarbledSender:
    """Answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str
    ) -> bytes:
        return self._answer

    async def close(self) -> None:
        return


@pytest.mark.parametrize("answer", [b"<html>", b'{"kind": "\xff"}'])
async def test_object_that_cannot_be_read_is_an_error_after_which_the_caller_goes_on(answer: bytes) -> None:
    api = Api(GarbledSender(answer))
    with pytest.raises(UnavailableError, match="cannot be read"):
        await api.get("/apis/apps/v1/namespaces/rl/deployments/t-actor", dict[str, Any])


@pytest.mark.parametrize("answer", [b"<html>", b'{"items": [{"kind": "\xff"}]}'])
async def test_list_that_cannot_be_read_is_an_error_after_which_the_caller_goes_on(answer: bytes) -> None:
    api = Api(GarbledSender(answer))
    with pytest.raises(UnavailableError, match="cannot be read"):
        await api.list_all("/api/v1/namespaces/rl/pods", dict[str, Any])
