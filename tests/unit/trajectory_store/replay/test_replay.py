"""First and later uses, leases, evictions and restarts of a store that replays."""

import shutil
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.replay import Stream
from tests.unit.trajectory_store.building import accept, make_trajectory, message_of, started_store, state_of
from tests.unit.trajectory_store.replay.building import (
    BATCH,
    LIMITS,
    NOW_S,
    RUN,
    UNITS,
    N,
    T,
    at,
    commit,
    dropped,
    insert,
    open_replay,
    replay_config,
    replay_of,
    replay_totals,
    sample,
    sampled,
    segment_message,
    started_replay,
    update,
    uses_of,
)
from tidegate.core.errors import ConfigError, ConflictError, CorruptionError, RecordError, StaleFolderError
from tidegate.core.staleness import StalenessLimits
from tidegate.runtime.config import WorkloadConfig
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.replay.buffer import PRIORITIES_FILE
from tidegate.trajectory_store.replay.plan import plan_replay
from tidegate.trajectory_store.replay.snapshot import LAYOUT_FILE
from tidegate.trajectory_store.store import Store


def test_first_use_makes_a_trajectory_trained_and_later_ones_are_only_counted(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    assert state_of(store, "t-0.0") == ("available", "")
    batch = sampled(store, at(0))
    assert state_of(store, "t-0.0") == ("leased", "")
    assert commit(store, batch, at(0)).num_first_uses == 1
    assert store.trajectory("t-0.0").trained_at == at(0)
    for step in (1, 2):
        assert [row.is_unused for row in sampled(store, at(step)).rows] == [False]
        assert commit(store, sampled(store, at(step)), at(step)).num_first_uses == 0
    assert store.trajectory("t-0.0").trained_at == at(0)
    outcomes, _ = store.outcomes(0, limit=100)
    assert [outcome.state for outcome in outcomes] == ["accepted", "trained"]
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted) == (3 * BATCH, 3 * BATCH)
    assert sum(uses_of(store).values()) == 3 * BATCH
    store.close()


def test_unit_at_its_limit_is_never_offered(tmp_path: Path) -> None:
    store = started_replay(tmp_path, replay_config(uses_max=2))
    insert(store, 0)
    num_units = replay_of(store).buffer.num_open
    step = 0
    while (batch := sample(store, at(step), batch_size=2)) is not None:
        commit(store, batch, at(step))
        step += 1
    uses = uses_of(store)
    assert step == num_units
    assert Counter(uses.values()) == {2: num_units}
    assert replay_totals(store).overused == 0
    store.close()
    again = open_replay(tmp_path, replay_config(uses_max=2))
    assert uses_of(again) == uses
    assert sample(again, at(step), batch_size=2) is None
    again.close()


def test_held_units_count_against_the_limit_until_they_are_released(tmp_path: Path) -> None:
    store = started_replay(tmp_path, replay_config(uses_max=1))
    insert(store, 0)
    num_units = replay_of(store).buffer.num_open
    batch = sampled(store, at(0), batch_size=num_units - 1)
    assert len(set(batch.ids.tolist())) == num_units - 1
    assert sample(store, at(1), batch_size=2) is None
    store.close()
    # A restart finds the batch that the learner holds.
    store = open_replay(tmp_path, replay_config(uses_max=1))
    assert sample(store, at(1), batch_size=2) is None
    store.release(batch.batch_id, dropped=(), now_s=NOW_S)
    assert state_of(store, "t-0.0") == ("available", "")
    assert sample(store, at(1), batch_size=num_units) is not None
    store.close()


def test_evicted_trajectory_that_was_never_used_is_dropped_as_unsampled(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1, 2, 3)
    update(store, at(0), batch_size=1)
    used = {row.trajectory_id for row in (update(store, at(1), batch_size=1).rows)}
    insert(store, 4, 5, 6, 7)
    for index in range(4):
        state, reason = state_of(store, f"t-{index}.0")
        assert (state, reason) in (("trained", ""), ("dropped", "unsampled"))
    assert used <= {f"t-{index}.0" for index in range(4)}
    totals = store.totals()
    assert totals.dropped == {"unsampled": 4 - totals.trained}
    assert totals.rows() == 8
    assert store.recent_drops[0].reason == "unsampled"
    store.close()


def test_trajectory_that_a_learner_holds_outlives_its_eviction(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    batch = sampled(store, at(0))
    insert(store, 1, 2, 3, 4)
    assert state_of(store, "t-0.0") == ("leased", "")
    assert commit(store, batch, at(0), priorities=[1.0] * BATCH).priorities.num_ignored == BATCH
    assert state_of(store, "t-0.0") == ("trained", "")
    assert replay_totals(store).priorities_ignored == BATCH
    batch = sampled(store, at(1), batch_size=1)
    (row,) = batch.rows
    insert(store, 5, 6, 7, 8)
    store.release(batch.batch_id, dropped=(), now_s=NOW_S)
    assert state_of(store, row.trajectory_id) == ("dropped", "unsampled")
    store.close()


def test_two_batches_may_name_one_trajectory_and_the_first_commit_trains_it(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    first, second = sampled(store, at(0)), sampled(store, at(1))
    assert [row.is_unused for row in second.rows] == [True]
    assert commit(store, first, at(0)).num_first_uses == 1
    assert commit(store, second, at(1)).num_first_uses == 0
    assert store.trajectory("t-0.0").trained_at == at(0)
    assert store.totals().trained_twice == 0
    store.close()


def test_released_batch_leaves_what_another_one_names(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    first, second = sampled(store, at(0)), sampled(store, at(1))
    store.release(first.batch_id, dropped=(), now_s=NOW_S)
    assert state_of(store, "t-0.0") == ("leased", "")
    assert commit(store, second, at(1)).num_first_uses == 1
    assert store.trajectory("t-0.0").trained_at == at(1)
    store.close()


def test_commit_of_the_second_batch_trains_what_the_first_one_holds(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    first, second = sampled(store, at(0)), sampled(store, at(1))
    assert commit(store, second, at(1)).num_first_uses == 1
    store.release(first.batch_id, dropped=(), now_s=NOW_S)
    assert state_of(store, "t-0.0") == ("trained", "")
    assert store.totals().leased == 0
    store.close()


def test_commit_is_idempotent_and_must_name_the_units_of_its_batch(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    batch = sampled(store, at(0))
    commit(store, batch, at(0))
    assert commit(store, batch, at(0)).num_first_uses == 0
    assert replay_totals(store).sampled == BATCH
    with pytest.raises(ConflictError, match="can no longer be committed"):
        commit(store, batch, at(1))
    other = sampled(store, at(1))
    wrong = msgspec.structs.replace(sampled(store, at(2)), ids=other.ids + 1)
    with pytest.raises(RecordError, match="does not name the units"):
        commit(store, wrong, at(2))
    with pytest.raises(RecordError, match="3 priorities"):
        commit(store, other, at(1), priorities=[1.0] * 3)
    store.close()


def test_lost_answer_is_given_again(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    batch, again = sampled(store, at(0)), sampled(store, at(0))
    assert again.batch_id == batch.batch_id
    assert again.ids.tolist() == batch.ids.tolist()
    np.testing.assert_array_equal(again.tensors["observations"], batch.tensors["observations"])
    insert(store, 2, 3, 4, 5)
    replaced = sampled(store, at(0))
    assert replaced.batch_id != batch.batch_id
    commit(store, replaced, at(0))
    assert replay_totals(store).sampled == BATCH
    store.close()


def test_restart_keeps_segments_uses_priorities_and_pace(tmp_path: Path) -> None:
    config = replay_config(selector="prioritised", priority_exponent=1.0, n_steps=2)
    store = started_replay(tmp_path, config)
    insert(store, 0, 1, 2)
    batch = sampled(store, at(0))
    commit(store, batch, at(0), priorities=[50.0, 60.0, 70.0, 80.0])
    pace = (replay_of(store).limiter.inserted, replay_of(store).limiter.sampled)
    uses, num_open = uses_of(store), replay_of(store).buffer.num_open
    store.close()
    again = open_replay(tmp_path, config)
    assert (replay_of(again).limiter.inserted, replay_of(again).limiter.sampled) == pace
    assert replay_of(again).buffer.num_open == num_open
    assert uses_of(again) == uses
    later = sampled(again, at(1), batch_size=40)
    # The priorities of the first batch hold: nearly every draw is of one of its units.
    assert np.isin(later.ids, batch.ids).mean() > 0.7
    insert(again, 3)
    assert replay_of(again).buffer.num_open > num_open
    again.close()


def test_segment_that_a_crash_tore_is_dropped_as_failed(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    update(store, at(0), batch_size=1)
    store.close()
    ring = tmp_path / "replay" / "000.ring"
    data = bytearray(ring.read_bytes())
    for slot in range(2):
        data[slot * len(data) // 4] ^= 1
    ring.write_bytes(data)
    again = open_replay(tmp_path)
    states = sorted(state_of(again, f"t-{index}.0") for index in range(2))
    # What had been used stays trained, what had not can never be.
    assert states == [("dropped", "failed"), ("trained", "")]
    assert replay_totals(again).torn == 2
    assert sample(again, at(1)) is None
    again.close()


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("000.ring", "deleted"),
        ("000.ring", "emptied"),
        ("headers.ring", "deleted"),
        ("headers.ring", "emptied"),
        ("layout.json", "deleted"),
        ("*", "deleted"),
    ],
)
def test_segments_whose_files_were_deleted_or_emptied_are_dropped_as_failed(
    tmp_path: Path, pattern: str, damage: str
) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    update(store, at(0), batch_size=1)
    store.close()
    for path in (tmp_path / "replay").glob(pattern):
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(b"")
    again = open_replay(tmp_path)
    states = sorted(state_of(again, f"t-{index}.0") for index in range(2))
    assert states == [("dropped", "failed"), ("trained", "")]
    assert sample(again, at(1)) is None
    insert(again, 2)
    assert sampled(again, at(1)).rows
    again.close()


def test_priorities_that_were_deleted_start_again_and_cost_no_segment(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    num_open = replay_of(store).buffer.num_open
    store.close()
    (tmp_path / "replay" / PRIORITIES_FILE).unlink()
    again = open_replay(tmp_path)
    assert replay_of(again).buffer.num_open == num_open
    assert sampled(again, at(0)).rows
    again.close()


def test_damaged_layout_is_refused_and_the_store_continues_without_the_folder(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    store.close()
    folder = tmp_path / "replay"
    (folder / LAYOUT_FILE).write_bytes(b"{")
    with pytest.raises(CorruptionError, match="remove the folder"):
        open_replay(tmp_path)
    shutil.rmtree(folder)
    again = open_replay(tmp_path)
    assert state_of(again, "t-0.0") == ("dropped", "failed")
    insert(again, 1)
    assert sampled(again, at(0)).rows
    again.close()


def test_store_whose_pages_are_gone_starts_while_a_learner_holds_units_of_them(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    assert sampled(store, at(0)).rows
    store.close()
    shutil.rmtree(tmp_path / "replay")
    again = open_replay(tmp_path)
    assert state_of(again, "t-0.0") == ("leased", ""), "until its learner opens a lineage"
    insert(again, 1)
    assert state_of(again, "t-1.0") == ("available", "")
    again.close()


def test_redelivered_segment_is_a_duplicate(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    store.ingest([segment_message(0), segment_message(1), segment_message(1)], now_s=NOW_S)
    totals = store.totals()
    assert (totals.available, totals.duplicates) == (2, 2)
    assert len(replay_of(store).buffer.pages) == 2
    store.close()


def test_more_segments_than_fit_arrive_at_once(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, *range(10))
    totals = store.totals()
    assert (totals.available, totals.dropped) == (4, {"unsampled": 6})
    store.close()


def test_message_that_holds_no_segment_is_refused(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    intake = store.ingest([message_of(make_trajectory("t-1"))], now_s=NOW_S)
    (refusal,) = intake.refused
    assert refusal.reason.startswith("Trajectory t-1.0 is no segment")
    store.close()


def test_what_left_the_budget_is_dropped_and_evicted_and_never_sampled(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1, version=at(0))
    insert(store, 2, version=at(5))
    limits = StalenessLimits(max_lag=4, max_age_s=60.0)
    batch = sample(store, at(5), limits=limits, batch_size=20)
    assert batch is not None
    assert {row.trajectory_id for row in batch.rows} == {"t-2.0"}
    assert store.expire(limits, now_s=NOW_S) == 2
    assert state_of(store, "t-0.0") == ("dropped", "stale")
    assert len(replay_of(store).buffer.pages) == 1
    assert store.expire(limits, now_s=NOW_S + 61.0) == 0
    assert sample(store, at(6), limits=limits) is None
    store.release(batch.batch_id, dropped=(), now_s=NOW_S)
    assert state_of(store, "t-2.0") == ("dropped", "unsampled")
    store.close()


def test_lag_of_a_later_use_shows_in_the_audit(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, version=at(0))
    for step in range(4):
        update(store, at(step))
    assert store.totals().max_lag_trained == 3
    store.close()
    again = open_replay(tmp_path)
    assert again.totals().max_lag_trained == 3
    again.close()


def test_dropped_trajectory_of_a_release_is_not_offered_again(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    update(store, at(0), batch_size=1)
    batch = sampled(store, at(1), batch_size=40)
    store.release(batch.batch_id, dropped=[dropped("t-0"), dropped("t-1")], now_s=NOW_S)
    assert sorted(state_of(store, f"t-{index}.0") for index in range(2)) == [
        ("dropped", "invalid"),
        ("trained", ""),
    ]
    assert sample(store, at(1)) is None
    store.close()


def test_pace_stops_inserts_and_samples(tmp_path: Path) -> None:
    config = replay_config(samples_per_insert=1.0, min_fill=UNITS, slack=0.0, n_steps=1)
    store = started_replay(tmp_path, config)
    assert sample(store, at(0)) is None
    step = 0
    inserted = 0
    for _ in range(6):
        while store.room(64):
            insert(store, inserted)
            inserted += 1
        while sample(store, at(step)) is not None:
            commit(store, sampled(store, at(step)), at(step))
            step += 1
        limiter = replay_of(store).limiter
        assert limiter.waiting == "learner"
        assert abs(limiter.inserted - limiter.sampled - UNITS) <= limiter.pace.slack
    assert inserted > 5
    store.close()


def test_episodes_come_once_with_the_next_batch(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    batch = sampled(store, at(0))
    assert [end.episode_return for end in batch.episodes] == [0.0, 1.0]
    assert sampled(store, at(1)).episodes == ()
    store.close()


def test_steps_that_actors_recorded_are_counted_without_rows_between_episodes_also_after_a_restart(
    tmp_path: Path,
) -> None:
    store = started_replay(tmp_path)
    stream = Stream(7, num_envs=N, end_chance=0.1)
    messages = [segment_message(index, stream=stream) for index in range(6)]
    assert store.ingest(messages, now_s=NOW_S).refused == []
    num_steps = sum(int(stream.segment(index * T, T)["valid"].sum()) for index in range(6))
    assert num_steps < 6 * UNITS
    assert sampled(store, at(0)).inserted_steps == num_steps
    store.close()
    again = open_replay(tmp_path)
    assert sampled(again, at(1)).inserted_steps == num_steps
    again.close()


def test_disk_that_is_full_leaves_buffer_and_ledger_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    buffer = replay_of(store).buffer
    real = buffer.insert

    def failing(*_: object, **__: object) -> int:
        monkeypatch.setattr(buffer, "insert", real)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(buffer, "insert", failing)
    with pytest.raises(OSError, match="No space"):
        store.ingest([segment_message(1)], now_s=NOW_S)
    assert (store.totals().available, len(buffer.pages)) == (1, 1)
    insert(store, 1)
    assert (store.totals().available, len(buffer.pages)) == (2, 2)
    store.close()


def test_folder_is_refused_when_replay_was_switched(tmp_path: Path) -> None:
    store = started_replay(tmp_path / "a")
    insert(store, 0)
    store.close()
    with pytest.raises(StaleFolderError, match="was started with "):
        Store(tmp_path / "a", run_id=RUN, config=TrajectoryStoreConfig(), now_s=NOW_S)
    plain = started_store(tmp_path / "b")
    accept(plain, "t-1")
    plain.close()
    with pytest.raises(StaleFolderError, match="started without"):
        open_replay(tmp_path / "b")


def test_replay_is_refused_where_it_cannot_work() -> None:
    segments = WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=N, unroll_length=4)
    text = WorkloadConfig(kind="text", env="arithmetic")
    assert plan_replay(TrajectoryStoreConfig(), text, batch_size=4, max_lag=0, seed=0) is None
    for config, workload, match in (
        (replay_config(), text, "kind text"),
        (replay_config(capacity=100, min_fill=100), segments, "leaves no room"),
        (replay_config(selector="recency", recency_half_life=1.0, capacity=1000), segments, "too short"),
        (replay_config(uses_max=1, samples_per_insert=2.0), segments, "above"),
    ):
        with pytest.raises(ConfigError, match=match):
            plan_replay(config, workload, batch_size=BATCH, max_lag=LIMITS.max_lag, seed=0)
