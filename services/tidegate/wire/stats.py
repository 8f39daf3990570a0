"""Statistics as every service publishes them twice a second: whole snapshots, so that a lost one does no harm."""

import msgspec

from tidegate.core.errors import RecordError
from tidegate.wire.bounds import ID_CHARS_MAX, check_count, check_name, is_time, shown

# The largest range in which a float represents every integer.
VALUE_MAX = 2.0**53
# The catalogue declares some hundred for a service, members of families included.
STATISTICS_MAX = 4096


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
        RecordError: the bytes are no snapshot, or it is none that a service makes.
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
        RecordError: a value is not finite, or too large for a counter; a name, the times or the number of values are
            out of their bounds.
    """
    for text, what in ((stats.service, "service"), (stats.instance, "instance"), (stats.state, "state")):
        check_name(text, f"The {what} of a report", chars_max=ID_CHARS_MAX)
    check_count(len(stats.values) + len(stats.labels), "statistics of one report", max_count=STATISTICS_MAX)
    if not is_time(stats.at_s) or not is_time(stats.started_at_s):
        raise RecordError(f"{shown(stats.instance)} reports at {stats.at_s}, since {stats.started_at_s}")
    for name, value in stats.values.items():
        if not -VALUE_MAX <= value <= VALUE_MAX:
            raise RecordError(
                f"{stats.instance} reports {name} as {value}",
                fix="read its log; its other reports are not affected",
            )
