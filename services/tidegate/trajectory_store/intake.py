"""From a message to trajectories that may be trusted: decoded, validated, and of a lineage this run opened."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgspec

from tidegate.core.errors import CorruptionError, NotFoundError, RecordError, TidegateError
from tidegate.core.ids import RunId, TrajectoryId
from tidegate.core.staleness import LineageTree
from tidegate.trajectory_store.admission_check import AdmissionCheck, AheadOfHeadError
from tidegate.trajectory_store.rows import Arrival
from tidegate.trajectory_store.uploads import UploadArea
from tidegate.wire.bounds import match_id
from tidegate.wire.columns import RecordColumns
from tidegate.wire.frame import Frame, open_frame
from tidegate.wire.reference import reference_from_bytes
from tidegate.wire.subjects import HEADER_REFERENCE, HEADER_TASK_PROOF, HEADER_TRAJECTORY_IDS
from tidegate.wire.task_proof import TaskProof
from tidegate.wire.validate import are_sound, validate_frame

# A group; beyond it a header is not believed.
IDS_PER_MESSAGE_MAX = 4096


class ArrivedMessage(msgspec.Struct, frozen=True, eq=False):
    """One message of TRAJECTORIES as it came."""

    data: bytes
    headers: dict[str, str]
    received_at_s: float

    def claimed_ids(self) -> list[TrajectoryId]:
        """The trajectory ids in the header as they are written, which only a proof makes ids; empty without any."""
        names = self.headers.get(HEADER_TRAJECTORY_IDS, "")
        claimed = names.split(",", IDS_PER_MESSAGE_MAX)[:IDS_PER_MESSAGE_MAX] if names else []
        return cast("list[TrajectoryId]", claimed)

    def trajectory_ids(self) -> list[TrajectoryId]:
        """The trajectory ids in the header, without what is none; empty when the sender gave no id."""
        return [name for name in self.claimed_ids() if match_id(name)]

    @property
    def is_reference(self) -> bool:
        """Whether the body names an upload and is no frame itself."""
        return self.headers.get(HEADER_REFERENCE) == "1"


class Parcel(msgspec.Struct, frozen=True, eq=False):
    """A valid message: its frame, that frame's provenance as bytes and as columns, and the frame ``opened``.

    ``upload`` is the digest of the upload its frame came from, if any.
    """

    message: ArrivedMessage
    frame: bytes
    head: bytes
    columns: RecordColumns
    opened: Frame
    upload: bytes | None


class Refusal(msgspec.Struct, frozen=True, eq=False):
    """A message that does not, and why.

    ``dropped``: the trajectories that end with it: those its header names, where its sender proved to hold their task.
    ``is_early``: of a version that may be announced in a moment. ``defect``: the exception of this service's code that
    made the message unreadable.
    """

    message: ArrivedMessage
    reason: str
    dropped: Sequence[TrajectoryId] = ()
    is_early: bool = False
    defect: Exception | None = None


class Ingested(msgspec.Struct, frozen=True, eq=False):
    """What became of some messages: what was stored of them, refused messages, and what had been stored before."""

    accepted: Sequence[Arrival]
    refused: list[Refusal]
    num_duplicates: int


def open_messages(
    messages: Sequence[ArrivedMessage],
    *,
    run_id: RunId,
    tree: LineageTree,
    uploads: UploadArea,
    admission: AdmissionCheck,
    keeps_images: bool = False,
) -> list[Parcel | Refusal]:
    """Decode and validate messages, each by itself; ``keeps_images`` whose values are wanted next.

    A reference to an upload that is gone is a refusal; the ledger knows whether its trajectories arrived before.

    Each step is done for all messages before the next one: its code, and what the interpreter keeps of it, then stay in
    the processor's cache (measured: 49 us of CPU a message of 16 kB instead of 56, payload and ledger included).
    """
    openings = [_Opening(message) for message in messages]
    _attempt(openings, partial(_prove, admission=admission))
    _attempt(openings, partial(_read, uploads=uploads, keeps_images=keeps_images))
    if not _are_sound(openings, run_id=run_id):
        _attempt(openings, partial(_validate, run_id=run_id))
    _attempt(openings, partial(_check, admission=admission, tree=tree))
    return [opening.refusal or opening.parcel for opening in openings]


class _Opening:
    """A message on its way to a parcel, which ``_read`` makes, or to a refusal. ``ids``: what a refusal drops."""

    proof: TaskProof | None
    parcel: Parcel

    def __init__(self, message: ArrivedMessage) -> None:
        self.message = message
        self.ids: Sequence[TrajectoryId] = ()
        self.refusal: Refusal | None = None

    def refuse(self, reason: str, *, is_early: bool = False, defect: Exception | None = None) -> None:
        self.refusal = Refusal(self.message, reason, dropped=self.ids, is_early=is_early, defect=defect)


def _attempt(openings: Sequence[_Opening], step: Callable[[_Opening], None]) -> None:
    """A step of each that is not refused; a message that is wrong, or meets a defect, is refused."""
    for opening in openings:
        if opening.refusal is not None:
            continue
        try:
            step(opening)
        except (RecordError, NotFoundError, CorruptionError) as error:
            opening.refuse(str(error), is_early=isinstance(error, AheadOfHeadError))
        except (TidegateError, OSError, MemoryError):
            raise
        except Exception as error:  # no message may end the store, which would meet it again
            reason = f"reading it failed by a {type(error).__name__}, a defect of the store: {error}"
            opening.refuse(reason, defect=error)


def _prove(opening: _Opening, *, admission: AdmissionCheck) -> None:
    message = opening.message
    # Before it is proved, a message that cannot be read drops nothing.
    opening.proof = admission.proof(message.headers.get(HEADER_TASK_PROOF, ""), message.claimed_ids())
    opening.ids = message.trajectory_ids() if opening.proof is None else opening.proof.trajectory_ids


def _read(opening: _Opening, *, uploads: UploadArea, keeps_images: bool) -> None:
    message = opening.message
    frame, upload = message.data, None
    if message.is_reference:
        reference = reference_from_bytes(message.data)
        frame, upload = uploads.read(reference), reference.digest
    opened = open_frame(frame)
    if opened.decompressed and not keeps_images:
        # The images of a portion of messages take up to 76 times its bytes.
        opened = msgspec.structs.replace(opened, decompressed={})
    opening.parcel = Parcel(message, frame, opened.head, opened.columns, opened, upload)


def _are_sound(openings: Sequence[_Opening], *, run_id: RunId) -> bool:
    """Whether all are valid; else each is validated by itself, and the one that is not is named."""
    frames = [opening.parcel.opened for opening in openings if opening.refusal is None]
    try:
        return not frames or are_sound(frames, run_id=run_id)
    except Exception:  # whichever it is of meets it again
        return False


def _validate(opening: _Opening, *, run_id: RunId) -> None:
    validate_frame(opening.parcel.opened, run_id=run_id)


def _check(opening: _Opening, *, admission: AdmissionCheck, tree: LineageTree) -> None:
    opened = opening.parcel.opened
    _check_lineages(opened.columns, tree)
    admission.check(opening.proof, opened, tree=tree)


def _check_lineages(columns: RecordColumns, tree: LineageTree) -> None:
    for position, spans in enumerate(columns.spans):
        for lineage, step, _, _ in spans:
            if lineage not in tree.lineages:
                raise RecordError(
                    f"Trajectory {columns.trajectory_id[position]!r} was generated by {lineage}@{step}, a lineage"
                    " that no learner opened",
                    fix="check that its actor belongs to this run",
                )
