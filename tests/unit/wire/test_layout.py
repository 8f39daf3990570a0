from typing import Any

import msgspec
import numpy as np
import pytest

from tidegate.core.errors import RecordError
from tidegate.wire.layout import (
    ALIGNMENT_BYTES,
    DTYPES,
    KEPT_BYTES_MAX,
    Kind,
    TensorColumn,
    layout_of,
    sheet_of,
    sheet_of_stacks,
    stacks_of,
)

F4 = DTYPES["f4"]


def column(name: str = "x", *, offset: int = 0, rows: int = 4) -> TensorColumn:
    return TensorColumn(name, "f4", offset, (2,), [rows], [])


def written(*columns: Any) -> bytes:
    return msgspec.msgpack.encode(list(columns))


def test_frames_laid_out_alike_share_a_layout() -> None:
    first, second = (layout_of(written(column()), num_records=1, payload_bytes=64) for _ in range(2))
    assert first is second


@pytest.mark.parametrize(("num_records", "payload_bytes"), [(2, 64), (1, 128)])
def test_same_words_of_another_number_of_records_or_payload_are_another_layout(
    num_records: int, payload_bytes: int
) -> None:
    columns = written(column())
    one = layout_of(columns, num_records=1, payload_bytes=64)
    other = layout_of(columns, num_records=num_records, payload_bytes=payload_bytes)
    assert other is not one
    assert other.places[0].shape == (4 * num_records, 2)


def test_layout_that_fitted_one_payload_is_refused_for_a_shorter_one() -> None:
    columns = written(column())
    layout_of(columns, num_records=1, payload_bytes=64)
    for _ in range(2):
        with pytest.raises(RecordError, match="payload of 31"):
            layout_of(columns, num_records=1, payload_bytes=31)


def test_large_layout_is_read_and_not_kept() -> None:
    columns = written(*[column(f"tensor-{number}") for number in range(KEPT_BYTES_MAX // 16)])
    first, second = (layout_of(columns, num_records=1, payload_bytes=64) for _ in range(2))
    assert first is not second
    assert len(first.places) == len(second.places) == KEPT_BYTES_MAX // 16


@pytest.mark.parametrize(
    "columns", [b"", b"\xc1", written(7), written(["x", "f4"]), msgspec.msgpack.encode("x")]
)
def test_invalid_list_of_tensors_is_refused(columns: bytes) -> None:
    with pytest.raises(RecordError, match="cannot be parsed"):
        layout_of(columns, num_records=1, payload_bytes=64)


def test_sheet_writes_tensors_where_the_layout_defines_them() -> None:
    shapes = [(3,), (5, 2), (0,), (1, 2), (7,)]
    names = ["x", "y", "x", "y", "x"]
    arrays = [np.full(shape, record, F4) for record, shape in enumerate(shapes)]
    stacks = stacks_of([{name: array} for name, array in zip(names, arrays, strict=True)])
    sheet = sheet_of_stacks(stacks, num_records=5)
    sent = [array for stack in stacks for array in stack.arrays]
    payload = b"".join(array.tobytes() + padding for array, padding in zip(sent, sheet.paddings, strict=True))
    assert len(payload) == sheet.payload_bytes
    layout = layout_of(sheet.columns, num_records=5, payload_bytes=len(payload))
    tensors: list[dict[str, Any]] = [{} for _ in arrays]
    for place in layout.places:
        assert place.offset % ALIGNMENT_BYTES == 0
        place.share(place.values(memoryview(payload)), tensors)
    for name, array, came in zip(names, arrays, tensors, strict=True):
        assert list(came) == [name]
        np.testing.assert_array_equal(came[name], array)


def test_records_alike_are_written_by_one_sheet() -> None:
    kinds: list[Kind] = [("x", F4, (3, 2), 0), ("y", DTYPES["b1"], (3,), 0)]
    assert sheet_of(kinds) is sheet_of(list(kinds))
    assert sheet_of([*kinds[:1], ("y", DTYPES["u1"], (3,), 0)]) is not sheet_of(kinds)


def test_places_of_blocks_are_written_where_the_layout_defines_them() -> None:
    kinds: list[Kind] = [("x", DTYPES["u1"], (9, 8, 8), 70), ("y", F4, (3,), 0)]
    sheet = sheet_of(kinds)
    layout = layout_of(sheet.columns, num_records=1, payload_bytes=sheet.payload_bytes)
    assert [(place.name, place.offset, place.stored_bytes) for place in layout.places] == [
        ("x", 0, 70),
        ("y", 128, None),
    ]
