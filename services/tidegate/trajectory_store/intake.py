"""From a message to trajectories that may be trusted: decoded, validated, and of a lineage this run opened."""

from collections.abc import Sequence

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
from tidegate.wire.validate import validate_frame

# A group; beyond it a header is not believed.
IDS_PER_MESSAGE_MAX = 4096


class ArrivedMessage(msgspec.Struct, frozen=True, eq=False):
    """One message of TRAJECTORIES as it came."""

    data: bytes
    headers: dict[str, str]
    received_at_s: float

    def trajectory_ids(self) -> list[TrajectoryId]:
        """The trajectory ids in the header, without what is none; empty when the sender gave no id."""
        names = self.headers.get(HEADER_TRAJECTORY_IDS, "").split(",")
        return [TrajectoryId(name) for name in names[:IDS_PER_MESSAGE_MAX] if match_id(name)]

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

    def without_images(self) -> "Parcel":
        """Once it was checked: the images of a portion of messages take up to 76 times its bytes."""
        if not self.opened.decompressed:
            return self
        return msgspec.structs.replace(self, opened=msgspec.structs.replace(self.opened, decompressed={}))


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


def open_message(
    message: ArrivedMessage,
    *,
    run_id: RunId,
    tree: LineageTree,
    uploads: UploadArea,
    admission: AdmissionCheck,
) -> Parcel | Refusal:
    """Decode and validate one message.

    A reference to an upload that is gone is a refusal; the ledger knows whether its trajectories arrived before.
    """
    ids = message.trajectory_ids()
    try:
        proof = admission.proof(message.headers.get(HEADER_TASK_PROOF, ""), ids)
    except RecordError as error:
        return Refusal(message=message, reason=str(error))
    try:
        frame, upload = message.data, None
        if message.is_reference:
            reference = reference_from_bytes(message.data)
            frame, upload = uploads.read(reference), reference.digest
        opened = open_frame(frame)
        validate_frame(opened, run_id=run_id)
        _check_lineages(opened.columns, tree)
        admission.check(proof, opened, tree=tree)
    except (RecordError, NotFoundError, CorruptionError) as error:
        return Refusal(
            message=message,
            reason=str(error),
            dropped=ids,
            is_early=isinstance(error, AheadOfHeadError),
        )
    except (TidegateError, OSError, MemoryError):
        raise
    except Exception as error:  # no message may end the store, which would meet it again
        reason = f"reading it failed by a {type(error).__name__}, a defect of the store: {error}"
        return Refusal(message=message, reason=reason, dropped=ids, defect=error)
    return Parcel(
        message=message,
        frame=frame,
        head=opened.head,
        columns=opened.columns,
        opened=opened,
        upload=upload,
    )


def _check_lineages(columns: RecordColumns, tree: LineageTree) -> None:
    for position, spans in enumerate(columns.spans):
        for lineage, step, _, _ in spans:
            if lineage not in tree.lineages:
                raise RecordError(
                    f"Trajectory {columns.trajectory_id[position]!r} was generated by {lineage}@{step}, a lineage"
                    " that no learner opened",
                    fix="check that its actor belongs to this run",
                )
