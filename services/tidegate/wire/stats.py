"""Statistics as every service publishes them twice a second: whole snapshots, so that a lost one does no harm."""

import msgspec

from tidegate.core.errors import RecordError

# The largest range in which a float represents every integer.
VALUE_MAX = 2.0**53


class ServiceStats(msgspec.Struct, frozen=True):
    """One service instance at one moment.

    ``values`` contains counters (``*_total``) and gauges, ``labels`` short texts such as the served version; all of
    them are declared in ``tidegate.catalogue``.
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
        RecordError: the bytes are no snapshot, or one of its values is not finite.
    """
    try:
        stats = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # msgspec leaves bad UTF-8 to Python
        raise RecordError("A stats message cannot be decoded", why=str(error)) from error
    check_stats(stats)
    return stats


def check_stats(stats: ServiceStats) -> None:
    """Refuse a snapshot with values unfit for arithmetic.

    Raises:
        RecordError: a value is not finite, or too large for a counter.
    """
    for name, value in stats.values.items():
        if not -VALUE_MAX <= value <= VALUE_MAX:
            raise RecordError(
                f"{stats.instance} reports {name} as {value}",
                fix="read its log; its other reports are not affected",
            )
