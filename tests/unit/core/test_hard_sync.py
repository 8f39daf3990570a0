from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.hard_sync import HardSyncConfig, SyncState, SyncView, advance
from tidegate.core.ids import LineageName, PolicyVersion

BATCH = 4
CONFIG = HardSyncConfig(every_versions=10, timeout_s=5.0)


def version(step: int, lineage: str = "0-a") -> PolicyVersion:
    return PolicyVersion(LineageName(lineage), step)


@dataclass
class SyncHarness:
    """A platform of one actor, seen by a sync."""

    step: int = 0
    running: int | None = 2
    in_flight: int = 9
    unannounced: int = 0
    serving: int = 0
    lineage: str = "0-a"
    drain_asked: bool = False
    state: SyncState = field(default_factory=SyncState)
    now_s: float = 0.0

    def tick(self, *, after_s: float = 1.0, config: HardSyncConfig = CONFIG) -> SyncState:
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


def test_sync_drains_spreads_and_resumes() -> None:
    harness = SyncHarness(step=3)
    assert not harness.tick().pauses
    harness.step = 13
    assert harness.tick().phase == "draining"
    harness.running, harness.in_flight = 0, 5
    assert harness.tick().phase == "draining", "a whole batch still waits for a gradient"
    harness.step, harness.in_flight, harness.unannounced = 14, 3, 2
    assert harness.tick().phase == "draining", "a trained batch is not announced yet"
    harness.unannounced = 0
    assert harness.tick().phase == "spreading"
    harness.serving = 14
    synced = harness.tick()
    assert (synced.phase, synced.completed, synced.last) == ("running", 1, version(14))


def test_a_task_queue_that_does_not_report_is_not_taken_for_an_empty_pipeline() -> None:
    harness = SyncHarness(step=0, in_flight=0, serving=10)
    harness.tick()
    harness.step = 10
    harness.tick()
    harness.running = None
    assert harness.tick().phase == "draining"
    harness.running = 0
    assert harness.tick().completed == 1


def test_the_period_counts_from_the_last_sync() -> None:
    harness = SyncHarness(step=0, running=0, in_flight=0, serving=10)
    harness.tick()
    harness.step = 10
    harness.tick()
    assert harness.tick().completed == 1
    harness.step = harness.serving = 19
    assert not harness.tick().pauses
    harness.step = 20
    assert harness.tick().pauses


def test_sync_is_aborted_at_its_timeout() -> None:
    harness = SyncHarness()
    harness.tick()
    harness.step = 10
    harness.tick()
    assert harness.tick(after_s=4.0).pauses
    aborted = harness.tick(after_s=2.0)
    assert (aborted.phase, aborted.aborted, aborted.completed) == ("running", 1, 0)
    assert not harness.tick().pauses, "the next one comes a whole period later"


def test_restarted_admission_starts_a_period_and_no_sync() -> None:
    assert not SyncHarness(step=1_000).tick().pauses


def test_restored_learner_starts_a_period() -> None:
    harness = SyncHarness(step=0)
    harness.tick()
    harness.lineage, harness.step = "1-b", 50
    assert not harness.tick().pauses
    harness.step = 60
    assert harness.tick().pauses


def test_drain_is_requested_once_a_version() -> None:
    harness = SyncHarness(step=5, running=0, in_flight=0, serving=5)
    never = HardSyncConfig(timeout_s=5.0)
    harness.tick(config=never)
    harness.drain_asked = True
    assert not harness.tick(config=never).pauses, "this version was seen when it was still fresh"
    harness.step = harness.serving = 6
    harness.tick(config=never)
    assert harness.tick(config=never).completed == 1
    assert not harness.tick(config=never).pauses, "the batch that asked is still the last one"


def test_without_a_period_nothing_ever_pauses() -> None:
    harness = SyncHarness()
    for step in range(50):
        harness.step = step
        assert not harness.tick(config=HardSyncConfig()).pauses


@pytest.mark.slow
@given(st.data())
def test_it_never_pauses_longer_than_its_timeout(data: st.DataObject) -> None:
    harness = SyncHarness()
    paused_since_s: float | None = None
    for _ in range(60):
        harness.step += data.draw(st.integers(0, 3))
        harness.serving = data.draw(st.integers(0, harness.step))
        harness.running = data.draw(st.integers(0, 3))
        harness.in_flight = harness.running + data.draw(st.integers(0, 6))
        harness.unannounced = data.draw(st.integers(0, 2))
        state = harness.tick(after_s=data.draw(st.floats(0.1, 2.0)))
        if not state.pauses:
            paused_since_s = None
        elif paused_since_s is None:
            paused_since_s = harness.now_s
        else:
            assert harness.now_s - paused_since_s <= CONFIG.timeout_s


def test_a_clock_set_back_does_not_prolong_a_sync() -> None:
    harness = SyncHarness()
    harness.tick()
    harness.step = 10
    assert harness.tick(after_s=100.0).pauses
    assert harness.tick(after_s=-90.0).pauses
    assert not harness.tick(after_s=6.0).pauses
