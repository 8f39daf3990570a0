"""Questions about streams that the broker lost."""

from typing import Any, cast

import nats.js.errors
import pytest

from tidegate.core.errors import UnavailableError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.streams import Streams


class EmptyJetStream:
    """A broker whose volume was lost: it knows no stream."""

    def jsm(self, *, timeout: float) -> "EmptyJetStream":
        del timeout
        return self

    async def stream_info(self, stream: str) -> Any:
        raise _not_found(stream)

    async def consumers_info(self, stream: str) -> Any:
        raise _not_found(stream)

    async def get_last_msg(self, stream: str, subject: str) -> Any:
        raise _not_found(f"{stream} {subject}")


def _not_found(what: str) -> nats.js.errors.NotFoundError:
    return nats.js.errors.NotFoundError(code=404, err_code=10059, description=f"not found: {what}")


async def test_stream_that_the_broker_lost_is_unavailable() -> None:
    streams = Streams(cast("Any", EmptyJetStream()), SystemClock())
    with pytest.raises(UnavailableError, match="TASKS-r"):
        await streams.state("TASKS-r")
    with pytest.raises(UnavailableError, match="TASKS-r"):
        await streams.consumers("TASKS-r")
    assert await streams.last("TASKS-r", "r.tasks.0") is None
