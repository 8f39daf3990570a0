"""The buffer beside a slow twin that walks each stream row by row."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import lz4.block
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replay import LINEAGE, STACK, Stream, segment_of, units_of
from tests.support.statistics import chi_square_limit, chi_square_of
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.trajectory_store.replay.buffer import BufferSettings, Drawn, ReplayBuffer, Resident
from tidegate.trajectory_store.replay.selectors import Selector, SelectorSettings

TREE = LineageTree().add(Lineage(name=LINEAGE))
LIMITS = StalenessLimits(max_lag=1000, max_age_s=1e9)
T, N = 5, 2


def settings_of(
    *,
    num_slots: int = 8,
    horizon: int = 3,
    period: int = 0,
    uses_max: int = 0,
    selector: Selector = "uniform",
) -> BufferSettings:
    return BufferSettings(
        num_slots=num_slots,
        num_steps=T,
        num_envs=N,
        horizon=horizon,
        period=period,
        uses_max=uses_max,
        selector=SelectorSettings(selector=selector, priority_exponent=1.0),
        block_file_bytes=256,
    )


def opened(folder: Path, wanted: BufferSettings) -> ReplayBuffer:
    buffer = ReplayBuffer(folder, wanted)
    buffer.follow(LINEAGE, TREE)
    return buffer


def draw(buffer: ReplayBuffer, count: int, *, seed: int = 0, step: int = 0) -> Drawn | None:
    return buffer.draw(count, step=step, limits=LIMITS, rng=np.random.default_rng(seed), now_s=0.0)


def open_ids(buffer: ReplayBuffer) -> set[int]:
    """Every unit that may be drawn, found by drawing many."""
    drawn = draw(buffer, 4000) if buffer.drawable else None
    return set() if drawn is None else set(drawn.ids.tolist())


def filled(
    folder: Path, stream: Stream, num_segments: int, wanted: BufferSettings, *, with_images: bool = False
) -> ReplayBuffer:
    buffer = opened(folder, wanted)
    for index in range(num_segments):
        insert(buffer, stream, index, with_images=with_images)
    return buffer


def insert(buffer: ReplayBuffer, stream: Stream, index: int, *, with_images: bool = False) -> int:
    tensors = stream.segment(index * T, T, with_images=with_images)
    seq = index + 1
    buffer.evict(buffer.must_evict(1))
    return buffer.insert(
        segment_of(seq, tensors, stream="a", position=index, step=index), arrival=index * T * N
    )


def expected_ids(stream: Stream, seqs: set[int], *, horizon: int) -> set[int]:
    """Complete units of the resident segments of one stream, whose segment ``seq`` begins at row ``(seq - 1) T``."""
    found: set[int] = set()
    for seq in seqs:
        last = seq
        while last + 1 in seqs:
            last += 1
        for place, env, row in units_of(T, N):
            position = (seq - 1) * T + row
            if stream.window(env, position, horizon=horizon, known=last * T) is not None:
                found.add(seq * T * N + place)
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    horizon=st.integers(1, 2 * T + 2),
    order=st.permutations(range(7)),
    num_slots=st.integers(2, 8),
)
def test_complete_units_are_those_of_the_slow_twin_in_any_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory, seed: int, horizon: int, order: list[int], num_slots: int
) -> None:
    stream = Stream(seed, num_envs=N)
    stream.extend(7 * T)
    buffer = opened(tmp_path_factory.mktemp("replay"), settings_of(num_slots=num_slots, horizon=horizon))
    arrived: list[int] = []
    for index in order:
        insert(buffer, stream, index)
        arrived.append(index + 1)
        resident = set(arrived[-num_slots:])
        assert buffer.pages.seqs() == resident
        expected = expected_ids(stream, resident, horizon=horizon)
        assert buffer.num_open == len(expected)
        assert open_ids(buffer) == expected
    buffer.close()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), horizon=st.integers(1, 2 * T + 2))
def test_transitions_are_read_as_the_slow_twin_walks_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int, horizon: int
) -> None:
    stream = Stream(seed, num_envs=N)
    stream.extend(6 * T)
    buffer = filled(tmp_path_factory.mktemp("replay"), stream, 6, settings_of(horizon=horizon))
    drawn = draw(buffer, 200)
    assert drawn is not None
    tensors, _ = buffer.read(drawn)
    for index, unit in enumerate(drawn.ids.tolist()):
        seq, place = divmod(unit, T * N)
        env, row = divmod(place, T)
        position = (seq - 1) * T + row
        rows = stream.window(env, position, horizon=horizon, known=6 * T)
        assert rows is not None
        assert tensors["observations"][index, 0] == np.float32(position + env / 10)
        assert tensors["next.observations"][index, 0] == np.float32(position + len(rows) + env / 10)
        assert tensors["lengths"][index] == len(rows)
        assert tensors["actions"][index] == position
        assert tensors["terminated"][index] == rows[-1].terminated
        padded = [each.reward for each in rows] + [0.0] * (horizon - len(rows))
        assert tensors["rewards"][index].tolist() == padded
    assert "valid" not in tensors
    buffer.close()


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), horizon=st.integers(1, 2 * T + 2), period=st.integers(1, T))
def test_sequences_begin_at_stored_starts_or_episodes_and_stop_at_an_end(
    tmp_path_factory: pytest.TempPathFactory, seed: int, horizon: int, period: int
) -> None:
    stream = Stream(seed, num_envs=N)
    stream.extend(6 * T)
    buffer = filled(tmp_path_factory.mktemp("replay"), stream, 6, settings_of(horizon=horizon, period=period))
    expected = {
        unit
        for unit in expected_ids(stream, set(range(1, 7)), horizon=horizon)
        if begins_sequence(stream, unit, period=period)
    }
    assert open_ids(buffer) == expected
    if not expected:
        return
    drawn = draw(buffer, 100)
    assert drawn is not None
    tensors, _ = buffer.read(drawn)
    for index, unit in enumerate(drawn.ids.tolist()):
        seq, place = divmod(unit, T * N)
        env, row = divmod(place, T)
        position = (seq - 1) * T + row
        rows = stream.window(env, position, horizon=horizon, known=6 * T)
        assert rows is not None
        num = len(rows)
        assert tensors["lengths"][index] == num
        observed = np.minimum(np.arange(horizon + 1), num) + position + env / 10
        np.testing.assert_array_equal(tensors["observations"][index, :, 0], observed.astype(np.float32))
        assert tensors["actions"][index, :num].tolist() == [each.position for each in rows]
        assert tensors["terminated"][index].tolist() == padded([each.terminated for each in rows], horizon)
        assert tensors["truncated"][index].tolist() == padded([each.truncated for each in rows], horizon)
        assert tensors["valid"][index].tolist() == padded([True] * num, horizon)
        assert tensors["rewards"][index].tolist() == padded([each.reward for each in rows], horizon)
    buffer.close()


def begins_sequence(stream: Stream, unit: int, *, period: int) -> bool:
    seq, place = divmod(unit, T * N)
    env, row = divmod(place, T)
    position = (seq - 1) * T + row
    return row % period == 0 or (row > 0 and not stream.rows[env][position - 1].valid)


def padded(values: list[float] | list[bool], length: int) -> list[float]:
    return [*values, *[0] * (length - len(values))]


def test_stored_state_comes_with_the_sequence_that_begins_at_it(tmp_path: Path) -> None:
    stream = Stream(1, num_envs=N, end_chance=0.4)
    buffer = ReplayBuffer(tmp_path, msgspec.structs.replace(settings_of(horizon=2, period=1), num_steps=6))
    buffer.follow(LINEAGE, TREE)
    tensors = stream.segment(0, 6)
    tensors["memory"] = np.arange(2 * N * 3, dtype=np.float32).reshape(2, N, 3) + 1
    buffer.insert(segment_of(1, tensors), arrival=0)
    drawn = draw(buffer, 300)
    assert drawn is not None
    found, _ = buffer.read(drawn)
    for index, unit in enumerate(drawn.ids.tolist()):
        env, row = divmod(unit % (6 * N), 6)
        # Two states in six steps: rows 0 and 3 have one, other first steps of episodes begin with the initial one.
        assert found["is_initial"][index] == (row % 3 != 0)
        stored = tensors["memory"][row // 3, env] if row % 3 == 0 else np.zeros(3)
        assert found["memory"][index].tolist() == stored.tolist()
    assert {unit % 6 for unit in drawn.ids.tolist()} >= {0, 3}
    buffer.close()


def decoded(buffer: ReplayBuffer, drawn: Drawn) -> Array:
    """The two stacked images of each transition, block by block."""
    _, (references,) = buffer.read(drawn)
    size = references.image.frame_bytes()
    images = np.empty((len(drawn.ids), 2, STACK, *references.image.frame_shape), np.uint8)
    for unit, which in np.ndindex(len(drawn.ids), 2):
        for position in range(STACK):
            slot = int(references.slots[unit, which])
            frame = int(references.starts[unit, which]) + position
            block = lz4.block.decompress(
                buffer.block(slot, image_index=0, block=frame // 8), uncompressed_size=8 * size
            )
            found = np.frombuffer(block, np.uint8)[frame % 8 * size :][:size]
            images[unit, which, position] = found.reshape(references.image.frame_shape)
    return images


def test_images_are_stacked_as_they_were_seen_and_each_frame_is_stored_once(tmp_path: Path) -> None:
    stream = Stream(3, num_envs=N)
    buffer = filled(tmp_path, stream, 12, settings_of(num_slots=4), with_images=True)
    drawn = draw(buffer, 100)
    assert drawn is not None
    images = decoded(buffer, drawn)
    tensors, _ = buffer.read(drawn)
    for index, unit in enumerate(drawn.ids.tolist()):
        seq, place = divmod(unit, T * N)
        env, row = divmod(place, T)
        position = (seq - 1) * T + row
        np.testing.assert_array_equal(images[index, 0], stream.image(env, position))
        after = position + int(tensors["lengths"][index])
        np.testing.assert_array_equal(images[index, 1], stream.image(env, after))
    # Files of images go with the last page in them: as many stay as the four resident pages need.
    sizes = sum(
        page.header.blocks.size for page in map(buffer.pages.page, buffer.pages.slots) if page.header.blocks
    )
    assert sum(1 for _ in tmp_path.glob("*.blocks")) <= 4
    assert 0 < sizes <= 4 * (T + 1) * N * STACK * 24
    buffer.close()


def test_unit_at_its_limit_is_not_drawn_and_held_ones_count(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 3, settings_of(uses_max=2))
    total = 2 * buffer.num_open
    assert buffer.drawable == total
    held = draw(buffer, 20)
    assert held is not None
    buffer.reserve(held.ids)
    assert buffer.drawable == total - 20
    rest = draw(buffer, total - 20, seed=1)
    assert rest is not None
    counts = np.unique(np.concatenate([held.ids, rest.ids]), return_counts=True)[1]
    assert counts.tolist() == [2] * (total // 2)
    assert draw(buffer, total - 19) is None
    buffer.unreserve(held.ids[:10])
    assert buffer.drawable == total - 10
    buffer.unreserve(held.ids[10:])
    buffer.use(held.ids[10:])
    assert buffer.drawable == total - 10
    buffer.close()


def test_page_in_the_slot_of_an_evicted_one_starts_without_its_uses(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 1, settings_of(num_slots=1, uses_max=1))
    held = draw(buffer, int(buffer.drawable))
    assert held is not None
    buffer.reserve(held.ids)
    insert(buffer, stream, 1)
    assert buffer.drawable == len(expected_ids(stream, {2}, horizon=3))
    # What a learner held of the evicted page is not taken from the new one.
    buffer.unreserve(held.ids)
    buffer.use(held.ids)
    assert buffer.drawable == len(expected_ids(stream, {2}, horizon=3))
    buffer.close()


@pytest.mark.slow
def test_draws_with_a_limit_follow_the_weights_of_what_is_left(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 6, settings_of(uses_max=1, selector="prioritised"))
    ids = np.array(sorted(open_ids_by_page(buffer)), np.int64)
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0.5, 2.0, len(ids)).astype(np.float32)
    buffer.set_priorities(ids, priorities)
    first = np.zeros(len(ids))
    for seed in range(6000):
        drawn = draw(buffer, 3, seed=seed)
        assert drawn is not None
        assert len(set(drawn.ids.tolist())) == 3
        first[np.searchsorted(ids, drawn.ids[0])] += 1
        expected = priorities[np.searchsorted(ids, drawn.ids[0])] / priorities.sum()
        assert drawn.probabilities[0] == pytest.approx(expected, rel=1e-5)
    assert chi_square_of(first, priorities / priorities.sum()) < chi_square_limit(len(ids) - 1)
    buffer.close()


def open_ids_by_page(buffer: ReplayBuffer) -> set[int]:
    drawn: set[int] = set()
    for seed in range(200):
        found = draw(buffer, 10, seed=seed)
        assert found is not None
        drawn.update(found.ids.tolist())
    return drawn


def test_probabilities_are_the_shares_of_priorities_to_the_exponent(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 4, settings_of(selector="prioritised"))
    ids = np.array(sorted(open_ids(buffer)), np.int64)
    priorities = np.linspace(0.0, 4.0, len(ids)).astype(np.float32)
    report = buffer.set_priorities(ids, priorities)
    assert report.num_set == len(ids)
    drawn = draw(buffer, 50_000)
    assert drawn is not None
    # A priority of zero is drawn as if it were tiny: a unit that is never drawn would never be corrected.
    expected = np.maximum(priorities, 1e-6) / np.maximum(priorities, 1e-6).sum()
    place = np.searchsorted(ids, drawn.ids)
    np.testing.assert_allclose(drawn.probabilities, expected[place], rtol=1e-5)
    observed = np.bincount(place, minlength=len(ids))
    assert chi_square_of(observed[1:], expected[1:]) < chi_square_limit(len(ids) - 2)
    buffer.close()


def test_priorities_that_are_not_finite_are_refused_and_those_of_evicted_units_ignored(
    tmp_path: Path,
) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 3, settings_of(num_slots=3))
    ids = np.array(sorted(open_ids(buffer))[:3], np.int64)
    insert(buffer, stream, 3)
    gone = np.array([1 * T * N, 1 * T * N + 1])
    report = buffer.set_priorities(
        np.concatenate([ids, gone]), np.array([np.nan, np.inf, -1.0, 2.0, 2.0], np.float32)
    )
    assert (report.num_set, report.num_refused, report.num_ignored) == (0, 3, 2)
    buffer.close()


def test_first_priorities_come_with_the_segment(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N, end_chance=0.0)
    buffer = opened(tmp_path, settings_of(selector="prioritised", horizon=1))
    tensors = stream.segment(0, T)
    tensors["priorities"] = np.arange(1, T * N + 1, dtype=np.float32).reshape(T, N)
    tensors["priorities"][0, 0] = np.nan
    buffer.insert(segment_of(1, tensors), arrival=0)
    drawn = draw(buffer, 2000)
    assert drawn is not None
    shares = dict(zip((drawn.ids - T * N).tolist(), drawn.probabilities.tolist(), strict=True))
    first = tensors["priorities"].T.reshape(-1).copy()
    first[0] = 1.0
    assert shares == {place: pytest.approx(value / first.sum()) for place, value in enumerate(first.tolist())}
    assert buffer.num_refused == 1
    buffer.close()


def test_what_left_the_budget_is_never_drawn(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = filled(tmp_path, stream, 6, settings_of())
    limits = StalenessLimits(max_lag=2, max_age_s=1e9)
    # Segment k is of version k - 1: at step 5 those of versions 3 and newer are inside.
    drawn = buffer.draw(50, step=5, limits=limits, rng=np.random.default_rng(0), now_s=0.0)
    assert drawn is not None
    assert {unit // (T * N) for unit in drawn.ids.tolist()} == {4, 5, 6}
    assert sorted(buffer.outdated(step=5, limits=limits, now_s=0.0)) == [1, 2, 3]
    too_old = StalenessLimits(max_lag=1000, max_age_s=5.0)
    assert buffer.draw(1, step=5, limits=too_old, rng=np.random.default_rng(0), now_s=6.0) is None
    assert buffer.draw(1, step=5, limits=too_old, rng=np.random.default_rng(0), now_s=float("nan")) is None
    buffer.close()


def among(known: list[Resident]) -> Callable[[Sequence[int]], dict[int, Resident]]:
    return lambda seqs: {item.seq: item for item in known if item.seq in seqs}


def test_restart_keeps_contents_uses_and_priorities(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    wanted = settings_of(num_slots=4, selector="prioritised")
    buffer = filled(tmp_path, stream, 6, wanted, with_images=True)
    ids = np.array(sorted(open_ids(buffer)), np.int64)
    buffer.set_priorities(ids, np.linspace(0.1, 3.0, len(ids)).astype(np.float32))
    before = draw(buffer, 500)
    assert before is not None
    images = decoded(buffer, before)
    tensors, _ = buffer.read(before)
    buffer.close()

    again = opened(tmp_path, wanted)
    known = [segment_of(seq, stream.segment((seq - 1) * T, T), step=seq - 1).resident for seq in range(1, 7)]
    assert again.recover(among(known)) == 0
    assert again.pages.seqs() == {3, 4, 5, 6}
    after = draw(again, 500)
    assert after is not None
    assert after.ids.tolist() == before.ids.tolist()
    np.testing.assert_array_equal(after.probabilities, before.probabilities)
    np.testing.assert_array_equal(decoded(again, after), images)
    found, _ = again.read(after)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
    # The next segment continues where the last one stopped.
    insert(again, stream, 6, with_images=True)
    assert again.num_open == len(expected_ids(stream, {4, 5, 6, 7}, horizon=3))
    again.close()


def test_torn_page_is_found_by_its_digest_and_one_that_the_ledger_forgot_is_not_kept(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    wanted = settings_of(num_slots=4)
    buffer = filled(tmp_path, stream, 4, wanted, with_images=True)
    buffer.close()
    ring = next(path for path in sorted(tmp_path.glob("0*.ring")))
    data = bytearray(ring.read_bytes())
    data[3] ^= 1
    ring.write_bytes(data)
    again = opened(tmp_path, wanted)
    known = [segment_of(seq, stream.segment((seq - 1) * T, T)).resident for seq in (1, 2, 3)]
    assert again.recover(among(known)) == 1
    assert again.pages.seqs() == {2, 3}
    assert again.num_open == len(expected_ids(stream, {2, 3}, horizon=3))
    assert insert(again, stream, 4, with_images=True) > 0
    again.close()


def test_segment_of_another_layout_is_refused(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    buffer = opened(tmp_path, settings_of())
    with pytest.raises(RecordError, match="no tensor `valid`"):
        buffer.check({"tokens": np.zeros(3, np.int32)}, name="t-1.0")
    with pytest.raises(RecordError, match="layout"):
        buffer.check(stream.segment(0, T + 1), name="t-1.0")
    buffer.check(stream.segment(0, T), name="t-1.0")
    insert(buffer, stream, 0)
    with pytest.raises(RecordError, match="layout"):
        buffer.check(stream.segment(0, T, with_images=True), name="t-2.0")
    buffer.close()


def test_folder_of_another_size_is_refused(tmp_path: Path) -> None:
    stream = Stream(5, num_envs=N)
    filled(tmp_path, stream, 2, settings_of()).close()
    with pytest.raises(StaleFolderError, match="capacity"):
        opened(tmp_path, settings_of(num_slots=9)).recover(among([]))


def test_layout_that_the_disk_refused_is_written_before_the_next_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(5, num_envs=N)
    stream.extend(2 * T)
    wanted = settings_of(num_slots=4)
    buffer = opened(tmp_path, wanted)
    refused = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr("tidegate.trajectory_store.replay.snapshot.replace_file", Mock(side_effect=refused))
        with pytest.raises(OSError, match="No space left"):
            insert(buffer, stream, 0)
    assert buffer.layout is None
    insert(buffer, stream, 0)
    insert(buffer, stream, 1)
    buffer.close()

    again = opened(tmp_path, wanted)
    known = [segment_of(seq, stream.segment((seq - 1) * T, T), step=seq - 1).resident for seq in (1, 2)]
    assert again.recover(among(known)) == 0
    assert again.pages.seqs() == {1, 2}
    again.close()
