"""LZ4 blocks of a frame's images; every other tensor is sent as its raw bytes.

The frames of one environment differ in a few pixels from step to step: compressed together they are 16 to 76 times
smaller (eight Atari games under random play), at 2 to 8 GB a second each way. Numbers and flags are not worth the pass.
"""

import lz4.block
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

CODEC_NONE = ""
CODEC_LZ4 = "lz4"
CODECS = (CODEC_NONE, CODEC_LZ4)
# A byte of a block decodes to at most 255 bytes of content (LZ4's block format), so a message bounds what a reader
# allocates for it before anything is decompressed.
LZ4_RATIO_MAX = 255
# Content of all blocks of a frame together: 4,096 steps of 32 environments with one 84×84 frame each.
CONTENT_BYTES_MAX = 1 << 30
# Smaller tensors are not worth a block of their own.
CONTENT_BYTES_MIN = 16 * 1024
# A block that saves less than a tenth costs its readers more than it saves its senders.
WORTHWHILE_SHARE = 0.9


def is_compressible(tensor: Array, room_bytes: int) -> bool:
    """Whether a tensor holds images, uint8 with at least two dimensions beside the rows, of at most ``room_bytes``."""
    return CONTENT_BYTES_MIN <= tensor.nbytes <= room_bytes and tensor.ndim >= 3 and tensor.dtype == np.uint8


def compress(tensor: Array) -> bytes | None:
    """A contiguous tensor as one LZ4 block; None where that saves too little."""
    block = lz4.block.compress(tensor.data, store_size=False)
    return block if len(block) < WORTHWHILE_SHARE * tensor.nbytes else None


def decompress(block: memoryview, *, content_bytes: int, name: str) -> bytes:
    """The content of a block, of exactly ``content_bytes``; the caller has checked that number.

    ``name``: of the tensor, in errors.

    Raises:
        RecordError: the block is malformed, or its content has another size.
    """
    try:
        content = lz4.block.decompress(block, uncompressed_size=content_bytes)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise RecordError(
            f"Tensor {name!r} of a trajectory frame cannot be decompressed to {content_bytes} bytes",
            why=str(error),
        ) from error
    if len(content) != content_bytes:
        raise RecordError(
            f"Tensor {name!r} of a trajectory frame decompresses to {len(content)} bytes, not to {content_bytes}",
            why="its shape is wrong",
        )
    return content
