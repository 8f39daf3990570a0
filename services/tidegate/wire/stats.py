"""Statistics as every service publishes them twice a second: whole snapshots, so that a lost one costs nothing."""

import msgspec

from tidegate.core.errors import RecordError


class ServiceStats(msgspec.Struct, frozen=True):
    """One service instance at one moment.

    ``values`` holds monotonic counters and gauges, units last (``*_total`` for counters); ``labels`` short texts such
    as the served version.
    """

    service: str
    instance: str
    state: str
    at_s: float
    started_at_s: float
    values: dict[str, float] = {}
    labels: dict[str, str] = {}


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ServiceStats)


def encode_stats(stats: ServiceStats) -> bytes:
    """A snapshot as the body of a stats message."""
    return _ENCODER.encode(stats)


def decode_stats(data: bytes) -> ServiceStats:
    """A snapshot from the body of a stats message.

    Raises:
        RecordError: the bytes are no snapshot.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # msgspec leaves bad UTF-8 to Python
        raise RecordError("A stats message cannot be decoded", why=str(error)) from error
