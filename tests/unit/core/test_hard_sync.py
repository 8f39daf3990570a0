from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.hard_sync import HardSyncConfig, SyncState, SyncView, advance
from tidegate.core.ids import LineageName, PolicyVersion

BATCH = 4
CONFIG = HardSyncConfig(every_versions=10, timeout_s=5.0)


def version(step: int, lineage: str = "0-a") -> PolicyVersion:
    return PolicyVersion(LineageName(lineage), step)


@dataclass
class House:
    """A platform of one actor, seen by a sync."""

    step: int = 0
    running: int = 2
    in_flight: int = 9
    unannounced: int = 0
    serving: int = 0
    lineage: str = "0-a"
    drain_asked: bool = False
    state: SyncState = field(default_factory=SyncState)
    now_s: float = 0.0

    def look(self, *, after_s: float = 1.0, config: HardSyncConfig = CONFIG) -> SyncState:
        self.now_s += after_s
        view = SyncView(
            head=version(self.step, self.lineage),
            running=self.running,
            in_flight=self.in_flight,
            unannounced=self.unannounced,
            serving=(version(self.serving, self.lineage),),
            drain_asked=self.drain_asked,
        )
        self.state = advance(self.state, view, config, batch_size=BATCH, now_s=self.now_s)
        return self.state


def test_a_sync_drains_spreads_and_goes_on() -> None:
    house = House(step=3)
    assert not house.look().pauses
    house.step = 13
    assert house.look().phase == "draining"
    house.running, house.in_flight = 0, 5
    assert house.look().phase == "draining", "a whole batch still waits for a gradient"
    house.step, house.in_flight, house.unannounced = 14, 3, 2
    assert house.look().phase == "draining", "what was trained is not announced yet"
    house.unannounced = 0
    assert house.look().phase == "spreading"
    house.serving = 14
    synced = house.look()
    assert (synced.phase, synced.completed, synced.last) == ("running", 1, version(14))


def test_the_period_counts_from_the_last_sync() -> None:
    house = House(step=0, running=0, in_flight=0, serving=10)
    house.look()
    house.step = 10
    house.look()
    assert house.look().completed == 1
    house.step = house.serving = 19
    assert not house.look().pauses
    house.step = 20
    assert house.look().pauses


def test_it_is_given_up_rather_than_waited_for_without_end() -> None:
    house = House()
    house.look()
    house.step = 10
    house.look()
    assert house.look(after_s=4.0).pauses
    gave_up = house.look(after_s=2.0)
    assert (gave_up.phase, gave_up.given_up, gave_up.completed) == ("running", 1, 0)
    assert not house.look().pauses, "the next one comes a whole period later"


def test_a_restarted_admission_begins_a_period_and_no_sync() -> None:
    assert not House(step=1_000).look().pauses


def test_a_learner_that_came_back_begins_a_period() -> None:
    house = House(step=0)
    house.look()
    house.lineage, house.step = "1-b", 50
    assert not house.look().pauses
    house.step = 60
    assert house.look().pauses


def test_a_drain_is_asked_for_once_a_version() -> None:
    house = House(step=5, running=0, in_flight=0, serving=5)
    never = HardSyncConfig(timeout_s=5.0)
    house.look(config=never)
    house.drain_asked = True
    assert not house.look(config=never).pauses, "this version was seen when it was still fresh"
    house.step = house.serving = 6
    house.look(config=never)
    assert house.look(config=never).completed == 1
    assert not house.look(config=never).pauses, "the batch that asked is still the last one"


def test_without_a_period_nothing_ever_pauses() -> None:
    house = House()
    for step in range(50):
        house.step = step
        assert not house.look(config=HardSyncConfig()).pauses


@given(st.data())
def test_it_never_pauses_longer_than_its_timeout(data: st.DataObject) -> None:
    house = House()
    paused_since_s: float | None = None
    for _ in range(60):
        house.step += data.draw(st.integers(0, 3))
        house.serving = data.draw(st.integers(0, house.step))
        house.running = data.draw(st.integers(0, 3))
        house.in_flight = house.running + data.draw(st.integers(0, 6))
        house.unannounced = data.draw(st.integers(0, 2))
        state = house.look(after_s=data.draw(st.floats(0.1, 2.0)))
        if not state.pauses:
            paused_since_s = None
        elif paused_since_s is None:
            paused_since_s = house.now_s
        else:
            assert house.now_s - paused_since_s <= CONFIG.timeout_s


def test_a_clock_set_back_does_not_prolong_a_sync() -> None:
    house = House()
    house.look()
    house.step = 10
    assert house.look(after_s=100.0).pauses
    assert house.look(after_s=-90.0).pauses
    assert not house.look(after_s=6.0).pauses
