"""A drawn batch as the frame that the learner gets (``wire.samples``)."""

from collections.abc import Collection, Sequence

import numpy as np

from tidegate.core.records import Array
from tidegate.trajectory_store.replay.blocks import FRAMES_PER_BLOCK
from tidegate.trajectory_store.replay.buffer import Drawn, ReplayBuffer
from tidegate.trajectory_store.replay.windows import NEXT, FrameReferences
from tidegate.wire.columns import EpisodeRow
from tidegate.wire.samples import (
    IDS,
    PROBABILITIES,
    ROW_OF,
    ImageToSend,
    SampledImage,
    SampledRow,
    SampleHead,
    encode_sample,
)


def sample_frame(
    buffer: ReplayBuffer,
    drawn: Drawn,
    *,
    batch_id: str,
    unused: Collection[int],
    inserted_steps: int,
    episodes: Sequence[EpisodeRow],
    is_sequence: bool,
    now_s: float,
) -> bytes:
    """The frame; ``unused``: trajectories that no surviving gradient used, by their place in the ledger."""
    slots, row_of = np.unique(drawn.slots, return_inverse=True)
    rows: list[SampledRow] = []
    for slot in slots.tolist():
        page = buffer.pages.page(slot)
        spans = tuple(
            [(span.version.lineage, span.version.step, span.start, span.stop) for span in page.spans]
        )
        is_unused = page.header.seq in unused
        started_at_s = page.started_at_s
        rows.append(SampledRow(page.trajectory_id, spans, started_at_s, now_s - started_at_s, is_unused))
    tensors, references = buffer.read(drawn)
    own: dict[str, Array] = {
        IDS: drawn.ids,
        PROBABILITIES: drawn.probabilities,
        ROW_OF: row_of.astype(np.int64),
    }
    head = SampleHead(
        batch_id=batch_id,
        num_open=drawn.num_open,
        inserted_steps=inserted_steps,
        rows=rows,
        episodes=list(episodes),
        images=[],
        tensors=[],
        payload_size=0,
    )
    images = [
        _image(buffer, item, index=index, is_sequence=is_sequence) for index, item in enumerate(references)
    ]
    return encode_sample(head, own | tensors, images)


def _image(
    buffer: ReplayBuffer, references: FrameReferences, *, index: int, is_sequence: bool
) -> ImageToSend:
    """Each block that a stacked frame lies in, once."""
    image = references.image
    frames_BMF = references.starts[..., None] + np.arange(image.stack)
    blocks_BMF, within_BMF = np.divmod(frames_BMF, FRAMES_PER_BLOCK)
    blocks_max = int(blocks_BMF.max()) + 1
    keys, place_of = np.unique(references.slots[..., None] * blocks_max + blocks_BMF, return_inverse=True)
    slots, blocks = np.divmod(keys, blocks_max)
    data: list[memoryview] = []
    counts: list[int] = []
    for slot, block in zip(slots.tolist(), blocks.tolist(), strict=True):
        data.append(buffer.block(slot, image_index=index, block=block))
        rest = buffer.num_frames(slot, image_index=index) - block * FRAMES_PER_BLOCK
        counts.append(min(FRAMES_PER_BLOCK, rest))
    block_frames = np.array(counts, np.int32)
    firsts = np.cumsum(block_frames) - block_frames
    frames = firsts[place_of.reshape(frames_BMF.shape)] + within_BMF
    names = (image.name,) if is_sequence else (image.name, f"{NEXT}{image.name}")
    sampled = SampledImage(names=names, frame_shape=image.frame_shape, stack=image.stack)
    return ImageToSend(image=sampled, blocks=data, block_frames=block_frames, frames=frames.astype(np.int32))
