"""The followed timeline against a slow twin that reads every row, and against its own first reading."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import LINEAGE, START_S, write_accounting, write_progress
from tidegate.core.ids import LineageName, RunId
from tidegate.core.staleness import Lineage
from tidegate.launch.run_record import RunRecord
from tidegate.trajectory_store import followed_timeline, row_sums
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.followed_timeline import FollowedAnswer, FollowedTimeline
from tidegate.trajectory_store.reading import LEDGER_FILE, LedgerRow, rows
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.timeline import LedgerTimeline, read_timeline


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return write_accounting(tmp_path, admitted=40, arrived=30, batches=3, retired=4)


@pytest.fixture
def path(tmp_path: Path, record: RunRecord) -> Path:
    return tmp_path / "trajectory_store" / LEDGER_FILE


def twin(found: list[LedgerRow], *, slice_s: float) -> LedgerTimeline:
    def place(at_s: float) -> int:
        return int(max(0.0, at_s - START_S) / slice_s)

    def count(times: list[float | None]) -> dict[int, int]:
        return dict(Counter(place(at_s) for at_s in times if at_s is not None))

    trained = [row for row in found if row.state == "trained"]
    steps, staged = Counter[int](), dict[int, list[tuple[float, ...]]]()
    for row in trained:
        assert row.terminal_at_s is not None
        assert row.leased_at_s is not None
        steps[place(row.terminal_at_s)] += row.num_steps
        times = (row.started_at_s, row.finished_at_s, row.accepted_at_s, row.leased_at_s, row.terminal_at_s)
        spans = tuple(later - earlier for earlier, later in pairwise(times))
        staged.setdefault(place(row.terminal_at_s), []).append(spans)
    return LedgerTimeline(
        num_folded=0,
        events={
            "stored": count([row.accepted_at_s for row in found]),
            "leased": count(
                [row.terminal_at_s if row.leased_at_s is None else row.leased_at_s for row in found]
            ),
            "ended": count([row.terminal_at_s for row in found]),
        },
        trained_steps=dict(steps),
        stages_s={
            name: {each: sum(span[index] for span in spans) / len(spans) for each, spans in staged.items()}
            for index, name in enumerate(("rollout", "in transit", "waiting for a batch", "in a batch"))
        },
    )


def check(found: FollowedAnswer, path: Path) -> None:
    """The answer is what the slow twin finds."""
    every = list(rows(path))
    expected = twin(every, slice_s=found.slice_s)
    assert found.num_unread == 0
    assert found.timeline.events == expected.events
    assert found.timeline.trained_steps == expected.trained_steps
    for name, by_slice in expected.stages_s.items():
        assert found.timeline.stages_s[name] == pytest.approx(by_slice)
    assert found.states == Counter(f"{row.state}: {row.reason}" if row.reason else row.state for row in every)
    assert found.end_s == max(row.terminal_at_s or row.accepted_at_s for row in every)


@pytest.mark.parametrize("slice_s", [0.01, 0.5, 3.0, 1e9])
def test_timeline_is_what_its_slow_twin_finds(path: Path, slice_s: float) -> None:
    found = read_timeline(path, start_s=START_S, slice_s=slice_s)
    expected = twin(list(rows(path)), slice_s=slice_s)
    assert (found.events, found.trained_steps) == (expected.events, expected.trained_steps)
    for name, by_slice in expected.stages_s.items():
        assert found.stages_s[name] == pytest.approx(by_slice)


@pytest.mark.parametrize(("bin_s", "bins_max"), [(0.5, 2560), (0.001, 8), (0.01, 320)])
def test_followed_timeline_has_each_change_of_a_run_that_grows(
    tmp_path: Path,
    record: RunRecord,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bin_s: float,
    bins_max: int,
) -> None:
    monkeypatch.setattr(followed_timeline, "BIN_S_MIN", bin_s)
    monkeypatch.setattr(followed_timeline, "BINS_MAX", bins_max)
    monkeypatch.setattr(followed_timeline, "SLICES", 5)
    monkeypatch.setattr(row_sums, "STRETCH_ROWS", 7)
    timeline = FollowedTimeline(path)
    check(timeline.follow(start_s=START_S), path)
    for step in (3, 4):
        first = 41 + 3 * (step - 3)
        write_progress(tmp_path, record, seqs=range(first, first + 3), step=step)
        found = timeline.follow(start_s=START_S)
        check(found, path)
        assert max(place for counts in found.timeline.events.values() for place in counts) < 5


def test_row_that_ended_is_read_once(
    tmp_path: Path, record: RunRecord, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def groups_of(*args: object, **values: object) -> list[row_sums.SummedRows]:
        found = list(row_sums.groups_of(*args, **values))  # pyright: ignore[reportArgumentType]
        read.append(sum(group.num_rows for group in found))
        return found

    monkeypatch.setattr(followed_timeline, "groups_of", groups_of)
    timeline = FollowedTimeline(path)
    timeline.follow(start_s=START_S)
    assert sum(read) == 34
    read.clear()
    write_progress(tmp_path, record, seqs=[41, 42], step=3)
    check(timeline.follow(start_s=START_S), path)
    assert sum(read) == 24 + 2, "those that waited, and the new ones"


def test_new_lineage_revives_rows_that_had_ended(record: RunRecord, path: Path) -> None:
    timeline = FollowedTimeline(path)
    assert timeline.follow(start_s=START_S).states["trained"] == 6
    store = Store(path.parent, run_id=RunId(record.run_id), config=TrajectoryStoreConfig(), now_s=START_S)
    fork = Lineage(name=LineageName("1-bbbb"), parent=LINEAGE, fork_step=2)
    store.open_lineage(fork, learner_id="learner-b", consumed=(), now_s=START_S + 20)
    store.close()
    found = timeline.follow(start_s=START_S)
    check(found, path)
    assert found.states["trained"] < 6


def test_large_ledger_is_counted_over_several_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_timeline, "READING_S", -1.0)
    monkeypatch.setattr(row_sums, "STRETCH_ROWS", 10)
    timeline = FollowedTimeline(path)
    unread = [timeline.follow(start_s=START_S).num_unread for _ in range(4)]
    assert unread == [24, 14, 4, 0]
    check(timeline.follow(start_s=START_S), path)


def test_everything_is_counted_again_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = FollowedTimeline(path)
    timeline.follow(start_s=START_S)
    monkeypatch.setattr(followed_timeline, "RECOUNT_S", -1.0)
    check(timeline.follow(start_s=START_S), path)


def test_empty_ledger_has_no_end(tmp_path: Path) -> None:
    store = Store(tmp_path, run_id=RunId("r"), config=TrajectoryStoreConfig(), now_s=START_S)
    store.close()
    found = FollowedTimeline(tmp_path / LEDGER_FILE).follow(start_s=START_S)
    assert (found.end_s, found.states, found.num_unread) == (None, {}, 0)
