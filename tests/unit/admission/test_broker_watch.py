import pytest

from tidegate.admission.broker_watch import fullness
from tidegate.runtime.streams import StreamState
from tidegate.wire.subjects import StreamSpec


@pytest.mark.parametrize(
    ("messages", "size", "expected"), [(50, 0, 0.5), (1, 900, 0.9), (0, 0, 0.0), (100, 1000, 1.0)]
)
def test_a_stream_is_as_full_as_its_nearest_limit(messages: int, size: int, expected: float) -> None:
    spec = StreamSpec("TASKS-r", ("tg.r.task.*",), "work_queue", "new", max_bytes=1000, max_messages=100)
    assert fullness(spec, StreamState(messages=messages, bytes=size, last_sequence=0)) == expected


def test_a_stream_without_a_bound_on_messages_is_judged_by_its_bytes() -> None:
    spec = StreamSpec("ROLLOUTS-r", ("tg.r.roll.*",), "work_queue", "new", max_bytes=1000)
    assert fullness(spec, StreamState(messages=10**6, bytes=100, last_sequence=0)) == 0.1
