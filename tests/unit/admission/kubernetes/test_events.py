from tests.support.kubernetes_memory import MemoryApi
from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.events import PER_MINUTE_MAX, ClusterEvent, EventWriter, Regarding
from tidegate.runtime.kubernetes_api import Api

ACCESS = Access("rl", "t-admission-0", "t", ("t-actor",), "t-admission", "")
WALL_S = 1_700_000_000.0


def happened(reason: str) -> ClusterEvent:
    return ClusterEvent(reason, "kubectl scaled to 7", Regarding("apps/v1", "Deployment", "t-actor", "rl"))


async def write(events: EventWriter, reason: str, *, now_s: float) -> None:
    await events.write(happened(reason), now_s=now_s, wall_s=WALL_S + now_s)


async def test_the_same_event_again_is_counted_and_the_count_written_once_a_minute() -> None:
    store = MemoryApi()
    events = EventWriter(Api(store), ACCESS)
    for second in range(0, 121, 10):
        await write(events, "ExternalScaleDetected", now_s=float(second))
    assert [method for method, _, _ in store.sent] == ["POST", "PATCH", "PATCH"]
    (event,) = store.objects.values()
    assert event["series"]["count"] == 13
    assert event["reportingController"] == "tidegate.dev/admission"
    assert event["regarding"]["name"] == "t-actor"


async def test_the_last_count_is_written_although_it_does_not_happen_again() -> None:
    store = MemoryApi()
    events = EventWriter(Api(store), ACCESS)
    await write(events, "A", now_s=0.0)
    await write(events, "A", now_s=1.0)
    await events.flush(now_s=30.0, wall_s=WALL_S)
    assert len(store.sent) == 1
    await events.flush(now_s=61.0, wall_s=WALL_S)
    await events.flush(now_s=122.0, wall_s=WALL_S)
    assert [event["series"]["count"] for event in store.objects.values()] == [2]
    assert len(store.sent) == 2


async def test_after_ten_minutes_it_is_a_new_event() -> None:
    store = MemoryApi()
    events = EventWriter(Api(store), ACCESS)
    await write(events, "A", now_s=0.0)
    await write(events, "A", now_s=601.0)
    assert len(store.objects) == 2


async def test_a_storm_is_cut_off_and_counted() -> None:
    store = MemoryApi()
    events = EventWriter(Api(store), ACCESS)
    for number in range(PER_MINUTE_MAX + 5):
        await write(events, f"Reason{number}", now_s=0.1 * number)
    assert len(store.objects) == PER_MINUTE_MAX
    assert events.num_dropped == 5
    await write(events, "Later", now_s=61.0)
    assert len(store.objects) == PER_MINUTE_MAX + 1
