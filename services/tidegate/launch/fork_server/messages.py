"""What the supervisor and a fork server send each other, over a socket pair that keeps messages apart."""

import msgspec

# More than one message: an environment of a user's shell has a few KB.
MESSAGE_BYTES_MAX = 1 << 20
# The answer to ``Configure``.
READY = b"ready"
# From the supervisor to a forked process that has reported its pid: run.
GO = b"go"


class Configure(msgspec.Struct, frozen=True, tag=True):
    """The run became known: the title of the process. A descriptor comes with it: where it logs."""

    title: str


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Load ``modules``, and fork a process that runs ``tidegate serve`` with ``arguments`` in ``environment``.

    Two descriptors come with it: the log of the process, and a socket on which the process reports its pid and then
    waits for ``GO``. When the supervisor closes its end instead, for example because it waited too long and started
    the service as a program, the process exits, so that no service ever runs twice.
    """

    arguments: list[str]
    modules: list[str]
    environment: dict[str, str]


Request = Configure | Fork

encode_request = msgspec.json.Encoder().encode


def decode_request(data: bytes) -> Request:
    """The request of one message."""
    request: Request = msgspec.json.decode(data, type=Request)
    return request
