"""Malformed messages by structure: any protobuf message with hostile values, and any bytes with small defects.

Everything follows from one random generator, so that a seed repeats a run.
"""

import math
import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

INTEGERS = (
    0,
    1,
    2,
    -1,
    -5,
    255,
    10**9,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e300, 5e-324)
TEXTS = (
    "",
    " ",
    "a b",
    "../../etc/passwd",
    "a/b",
    "*",
    ">",
    "é",
    "\0",
    "a\nb",
    "x" * 300,
    "x" * 70_000,
    "-",
    "0",
)
BOUNDS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
DEPTH_MAX = 4


class Fuzzer:
    """Draws messages. ``known``: texts that mean something to the services, such as ids, so that some calls get far."""

    def __init__(self, rng: random.Random, *, known: tuple[str, ...]) -> None:
        self._rng = rng
        self._known = known

    def request(self, kind: Descriptor) -> bytes:
        """The bytes of a message of this kind, one in four of them damaged."""
        data = self.message(kind).SerializeToString()
        return self.damaged(data) if self._rng.random() < 0.25 else data

    def damaged(self, data: bytes) -> bytes:
        """Bytes cut, flipped, doubled or replaced."""
        rng = self._rng
        match rng.randrange(5):
            case 0:
                return rng.randbytes(rng.randrange(64))
            case 1:
                return data[: rng.randrange(len(data) + 1)]
            case 2:
                return data + rng.randbytes(1 + rng.randrange(16))
            case 3:
                return data * 3
            case _:
                flipped = bytearray(data)
                for _ in range(rng.randrange(1, 4)):
                    if flipped:
                        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
                return bytes(flipped)

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        """A message whose fields are absent, plausible or hostile."""
        message = GetMessageClass(kind)()
        for field in kind.fields:
            if self._rng.random() < 0.8:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        rng = self._rng
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            return
        if field.is_repeated:
            count = rng.choice((0, 1, 1, 2, 3, 40 if depth == 0 else 4))
            if entry is None:
                getattr(message, field.name).extend(self._value(field) for _ in range(count))
            elif depth < DEPTH_MAX:
                getattr(message, field.name).extend(self.message(entry, depth + 1) for _ in range(count))
        elif entry is None:
            setattr(message, field.name, self._value(field))
        elif depth < DEPTH_MAX:
            getattr(message, field.name).CopyFrom(self.message(entry, depth + 1))

    def _value(self, field: FieldDescriptor) -> Any:
        rng = self._rng
        if field.type in BOUNDS:
            least, most = BOUNDS[field.type]
            value = rng.choice((rng.randrange(8), rng.randrange(8), rng.choice(INTEGERS)))
            return min(max(value, least), most)
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            # Honest polls are short, so that many calls fit into a test.
            return rng.choice((0.01, 0.0, rng.choice(FLOATS)))
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return rng.randrange(8)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 4, 16, 16, 64, 5000)))
        return rng.choice((*self._known, rng.choice(TEXTS)))
