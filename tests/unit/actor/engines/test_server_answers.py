"""Answers of an inference server that are not what was asked for."""

import pytest

from tidegate.actor.engines.server_http import decode
from tidegate.actor.engines.server_port import ServerRefusalError


@pytest.mark.parametrize("payload", [b"", b"{", b'{"model": 1}', b'{"model": "\xff"}', b"[" * 100_000])
def test_answer_that_cannot_be_read_is_a_refusal(payload: bytes) -> None:
    with pytest.raises(ServerRefusalError, match="an unknown answer to /v1/models"):
        decode(payload, dict[str, str], what="/v1/models")
