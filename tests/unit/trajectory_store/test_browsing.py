"""Pages of rows against a slow twin that reads all rows and filters them in Python."""

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import write_accounting
from tests.unit.cli.ui.completions import FIRST, SECOND, write_completions
from tidegate.core.errors import DeadlineError
from tidegate.core.ids import TaskId, task_id
from tidegate.trajectory_store import browsing, reading
from tidegate.trajectory_store.browsing import Filter, group_of, page_of, updates_of
from tidegate.trajectory_store.reading import LedgerRow


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    write_accounting(tmp_path, admitted=40, arrived=30, batches=5, retired=4)
    return tmp_path / "trajectory_store"


FILTERS: list[tuple[Filter, Callable[[LedgerRow], bool]]] = [
    (Filter(), lambda row: True),
    (Filter(state="trained"), lambda row: row.state == "trained"),
    (Filter(reason="retired"), lambda row: row.reason == "retired"),
    (Filter(curriculum_bin="hard"), lambda row: row.curriculum_bin == "hard"),
    (Filter(lag_min=2), lambda row: (row.stale_by_versions or 0) >= 2),
    (Filter(trained_step=1), lambda row: row.trained_at is not None and row.trained_at.step == 1),
    (Filter(state="trained", lag_min=4), lambda row: (row.stale_by_versions or 0) >= 4),
]


@pytest.mark.parametrize(("wanted", "admits"), FILTERS)
def test_filter_admits_what_its_slow_twin_admits(
    store_folder: Path, wanted: Filter, admits: Callable[[LedgerRow], bool]
) -> None:
    expected = [row.trajectory_id for row in reading.rows(store_folder / reading.LEDGER_FILE) if admits(row)]
    assert [row.trajectory_id for row in page_of(store_folder, wanted)] == expected[::-1]


def test_rewards_are_bounded_on_both_sides(tmp_path: Path) -> None:
    write_completions(tmp_path)
    folder = tmp_path / "trajectory_store"
    assert [row.trajectory_id for row in page_of(folder, Filter(reward_min=0.25, reward_max=0.25))] == [
        SECOND
    ]
    assert [row.trajectory_id for row in page_of(folder, Filter(reward_min=0.5))] == [FIRST]
    assert page_of(folder, Filter(tokens_min=5)) == []


def test_reward_of_classic_rl_is_the_mean_return(store_folder: Path) -> None:
    assert len(page_of(store_folder, Filter(reward_min=20.0, reward_max=20.0))) == 30
    assert page_of(store_folder, Filter(reward_min=20.5)) == []


def test_group_is_the_samples_of_one_task_in_their_order(tmp_path: Path, store_folder: Path) -> None:
    write_completions(tmp_path / "texts", completion="x" * 3000)
    members = group_of(tmp_path / "texts" / "trajectory_store", TaskId(task_id(1)))
    assert [member.row.trajectory_id for member in members] == [FIRST, SECOND]
    assert [member.row.reward for member in members] == [1.0, 0.25]
    assert {member.completion for member in members} == {"x" * browsing.COMPLETION_CHARS}
    assert group_of(store_folder, TaskId(task_id(40))) == [], "it has not arrived"
    (dropped,) = group_of(store_folder, TaskId(task_id(31)))
    assert (dropped.row.reason, dropped.completion) == ("retired", "")


def page_of_an_update(folder: Path) -> object:
    return page_of(folder, Filter(trained_step=3))


def group_of_a_task(folder: Path) -> object:
    return group_of(folder, TaskId(task_id(3)))


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (page_of_an_update, "trajectories_by_update"),
        (group_of_a_task, "sqlite_autoindex_trajectories"),
        (updates_of, "trajectories_by_update"),
    ],
)
def test_page_of_few_rows_scans_no_ledger(
    store_folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object], index: str
) -> None:
    plans: list[str] = []
    reading = browsing.reading

    class Explaining:
        def __init__(self, db: sqlite3.Connection) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

        def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
            plans.extend(row[3] for row in self._db.execute(f"EXPLAIN QUERY PLAN {query}", values))
            return self._db.execute(query, values)

    @contextmanager
    def explaining(path: Path) -> Generator[Explaining]:
        with reading(path) as db:
            yield Explaining(db)

    monkeypatch.setattr(browsing, "reading", explaining)
    ask(store_folder)
    assert any(index in plan for plan in plans), plans
    assert not [plan for plan in plans if plan.startswith("SCAN") and "trajectories" in plan], plans


def test_pages_follow_each_other_without_gap_or_repetition(
    store_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "PAGE_ROWS", 7)
    found: list[str] = []
    before = None
    while page := page_of(store_folder, Filter(), before_seq=before):
        assert len(page) <= 7
        found += [row.trajectory_id for row in page]
        before = page[-1].seq
    assert found == [row.trajectory_id for row in reading.rows(store_folder / reading.LEDGER_FILE)][::-1]


def test_updates_tell_what_was_trained_newest_first(store_folder: Path) -> None:
    updates = updates_of(store_folder)
    assert [update.from_version for update in updates] == [f"0-aaaa@{step}" for step in (4, 3, 2, 1, 0)]
    assert [update.max_lag for update in updates] == [4, 3, 2, 1, 0]
    assert {update.num_trajectories for update in updates} == {2}
    assert [update.step for update in updates_of(store_folder, before_step=2)] == [1, 0]


def test_query_that_takes_too_long_ends_with_a_sentence(
    store_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "QUERY_S", -1.0)
    monkeypatch.setattr(browsing, "_INSTRUCTIONS", 1)
    with pytest.raises(DeadlineError, match="fewer columns"):
        page_of(store_folder, Filter())
