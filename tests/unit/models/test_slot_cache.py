"""Slots keep their rows' content while rows join, leave and grow."""

from collections.abc import Iterator

import pytest
import torch

from tidegate.core.errors import ConfigError
from tidegate.models.causal_lm import KvCache
from tidegate.models.slot_cache import CAPACITY_MIN, SlotCache

HEADS, WIDTH = 2, 3
BYTES_PER_TOKEN = 2 * HEADS * WIDTH * 4
CONTEXT = 4 * CAPACITY_MIN


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def filled(*numbers: float, num_tokens: int) -> KvCache:
    """One row a number, all of its keys that number and all of its values minus it."""
    keys = torch.tensor(numbers).view(-1, 1, 1, 1).expand(-1, HEADS, num_tokens, WIDTH)
    lengths_B = torch.full((len(numbers),), num_tokens)
    return KvCache(keys=(keys,), values=(-keys,), lengths_B=lengths_B, valid_BS=None)


def open_cache(*, slots: int = 4, bytes_max: int = 1 << 20) -> SlotCache:
    return SlotCache(filled(0.0, num_tokens=1), slots=slots, context_length=CONTEXT, bytes_max=bytes_max)


def write(cache: SlotCache, *numbers: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pass that writes one number a row; all keys, all values (without heads and width), and what may be seen."""
    attention = cache.begin()
    fresh = torch.tensor(numbers).view(-1, 1, 1, 1).expand(-1, HEADS, 1, WIDTH)
    keys, values = attention.extend(0, fresh, -fresh)
    assert keys.shape == (len(numbers), HEADS, attention.num_keys, WIDTH)
    assert (keys == keys[:, :1, :, :1]).all()
    mask = torch.ones(len(numbers), attention.num_keys, dtype=torch.bool)
    return keys[:, 0, :, 0], values[:, 0, :, 0], mask if attention.mask is None else attention.mask[:, 0, 0]


def seen(cache: SlotCache, *numbers: float) -> list[list[float]]:
    """Keys that each row's query may see after a pass that writes these numbers."""
    keys, values, mask = write(cache, *numbers)
    assert (values == -keys).all()
    return [keys[row][mask[row]].numpy().tolist() for row in range(len(numbers))]


def test_rows_of_any_length_write_at_their_own_positions() -> None:
    cache = open_cache()
    cache.append(filled(1.0, 2.0, num_tokens=3), [0, 1], lengths=[3, 1])
    assert seen(cache, 5.0, 6.0) == [[1.0, 1.0, 1.0, 5.0], [2.0, 6.0]]
    assert seen(cache, 7.0, 8.0) == [[1.0, 1.0, 1.0, 5.0, 7.0], [2.0, 6.0, 8.0]]
    assert cache.lengths.tolist() == [5, 3]


def test_a_row_may_stand_in_several_slots() -> None:
    cache = open_cache()
    cache.append(filled(1.0, 2.0, num_tokens=2), [1, 0, 1], lengths=[2, 2, 2])
    assert seen(cache, 3.0, 4.0, 5.0) == [[2.0, 2.0, 3.0], [1.0, 1.0, 4.0], [2.0, 2.0, 5.0]]


def test_the_last_rows_take_the_places_of_those_that_leave() -> None:
    cache = open_cache(slots=5)
    cache.append(filled(0.0, 1.0, 2.0, 3.0, 4.0, num_tokens=2), range(5), lengths=[1, 2, 1, 2, 1])
    assert cache.drop([1, 3]) == [(4, 1)]
    assert seen(cache, 9.0, 8.0, 7.0) == [[0.0, 9.0], [4.0, 8.0], [2.0, 7.0]]
    assert cache.drop([0, 1, 2]) == []
    assert cache.num_rows == 0


def test_a_slot_shows_nothing_of_the_longer_row_that_was_there() -> None:
    cache = open_cache()
    cache.append(filled(1.0, 2.0, num_tokens=9), [0, 1], lengths=[9, 9])
    cache.drop([0, 1])
    cache.append(filled(3.0, 4.0, num_tokens=2), [0, 1], lengths=[1, 2])
    assert seen(cache, 5.0, 6.0) == [[3.0, 5.0], [4.0, 4.0, 6.0]]


def test_capacity_doubles_and_keeps_its_content() -> None:
    cache = open_cache(slots=2)
    cache.append(filled(1.0, 2.0, num_tokens=2), [0, 1], lengths=[2, 1])
    sizes: list[int] = []
    for number in range(CONTEXT - 2):
        write(cache, float(number), float(-number))
        sizes.append(cache.num_bytes)
    assert sorted(set(sizes)) == [
        2 * capacity * BYTES_PER_TOKEN for capacity in (CAPACITY_MIN, 2 * CAPACITY_MIN, CONTEXT)
    ]
    keys, _, _ = write_last(cache)
    assert keys[0].numpy().tolist() == [1.0, 1.0, *map(float, range(CONTEXT - 2))]
    assert keys[1, : CONTEXT - 1].numpy().tolist() == [
        2.0,
        *(float(-number) for number in range(CONTEXT - 2)),
    ]


def write_last(cache: SlotCache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows as they are, read by going back one token."""
    cache.lengths[:] -= 1
    last = [float(CONTEXT - 3), float(-(CONTEXT - 3))]
    return write(cache, *last)


def test_few_long_rows_or_many_short_ones_fit_into_the_bound() -> None:
    bytes_max = CONTEXT * BYTES_PER_TOKEN
    cache = open_cache(slots=8, bytes_max=bytes_max)
    assert [cache.has_room(rows, longest=CAPACITY_MIN) for rows in (4, 5)] == [True, False]
    assert [cache.has_room(rows, longest=CAPACITY_MIN + 1) for rows in (2, 3)] == [True, False]
    assert [cache.has_room(rows, longest=CONTEXT) for rows in (1, 2)] == [True, False]
    cache.append(filled(1.0, num_tokens=CONTEXT - 1), [0], lengths=[CONTEXT - 1])
    write(cache, 2.0)
    assert cache.num_bytes == bytes_max
    cache.drop([0])
    cache.append(filled(1.0, 2.0, 3.0, 4.0, num_tokens=2), range(4), lengths=[2, 1, 2, 1])
    assert seen(cache, 5.0, 6.0, 7.0, 8.0) == [[1.0, 1.0, 5.0], [2.0, 6.0], [3.0, 3.0, 7.0], [4.0, 8.0]]
    assert cache.num_bytes == cache.bytes_max == bytes_max


def test_recomputed_rows_replace_the_cached_ones() -> None:
    cache = open_cache()
    cache.append(filled(1.0, 2.0, 3.0, num_tokens=2), range(3), lengths=[2, 1, 2])
    cache.replace([2, 0], filled(8.0, 9.0, num_tokens=2))
    assert seen(cache, 5.0, 6.0, 7.0) == [[9.0, 9.0, 5.0], [2.0, 6.0], [8.0, 8.0, 7.0]]


def test_a_bound_below_one_whole_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="context_length"):
        open_cache(bytes_max=CONTEXT * BYTES_PER_TOKEN - 1)
