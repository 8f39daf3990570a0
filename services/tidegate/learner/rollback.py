"""Rollbacks: an operator sends the learner back to a version that a kept checkpoint holds.

A rollback is decided between two updates and written to ``rollback.json`` before anything is changed. The learner then
starts again from that checkpoint (``learner.startup``) as a killed one does from its newest, but for two things: the
updates after it are not recomputed, and the checkpoints after it are deleted. The file goes last, so a learner that is
killed at any moment between finishes the rollback at its next start.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    TidegateError,
    UnavailableError,
)
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.runtime.clock import Clock
from tidegate.runtime.files import replace_file, sync_folder

ROLLBACK_FILE = "rollback.json"
# Callers that wait for the end of an update; each leaves with its answer.
REQUESTS_MAX = 16


class Rollback(msgspec.Struct, frozen=True):
    """A rollback that was accepted. ``head``: the newest version then; ``target``: what the checkpoint holds."""

    head: PolicyVersion
    target: PolicyVersion
    reason: str
    by: str
    at_s: float


def find_target(wanted: PolicyVersion, kept: Sequence[PolicyVersion], tree: LineageTree) -> PolicyVersion:
    """The version of a kept checkpoint that is ``wanted``, maybe under another name: a restore renames its version.

    Raises:
        NotFoundError: no kept checkpoint holds it; the message names those there are.
    """
    for version in kept:
        if version == wanted:
            return version
    if wanted.lineage in tree.lineages:
        for version in kept:
            if version.lineage in tree.lineages and tree.distance(wanted, version) == 0:
                return version
    raise NotFoundError(
        f"No kept checkpoint holds version {wanted}",
        why=f"they hold {', '.join(map(str, kept)) or 'nothing'}, and only a checkpoint has the optimiser's state",
        fix="name one of these; a run keeps more with learner.keep_checkpoints and checkpoint_every_steps",
    )


class RollbackFile:
    """``rollback.json``: there from the moment a rollback is accepted until it is finished."""

    def __init__(self, path: Path) -> None:
        """``path``: in the learner's data folder."""
        self._path = path

    def read(self) -> Rollback | None:
        """The rollback that is to be finished; None without one.

        Raises:
            CorruptionError: the file is damaged.
        """
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Rollback)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(f"{self._path} cannot be read", why=str(error)) from error

    def write(self, rollback: Rollback) -> None:
        """Make it durable.

        Raises:
            OSError: the disk refused.
        """
        replace_file(self._path, msgspec.json.encode(rollback), durable=True)

    def remove(self) -> None:
        """It is finished, or given up.

        Raises:
            OSError: the disk refused.
        """
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)


class _Request(msgspec.Struct, frozen=True, eq=False):
    wanted: PolicyVersion
    reason: str
    by: str
    accepted: asyncio.Future[Rollback]


class RollbackRequests:
    """Requests of operators, until the loop decides on them between two updates."""

    def __init__(self, folder: CheckpointFolder, file: RollbackFile, clock: Clock) -> None:
        self._folder = folder
        self._file = file
        self._clock = clock
        self._waiting: list[_Request] = []
        self._closed = False

    @property
    def waiting(self) -> bool:
        """Whether a request waits for ``decide``."""
        return bool(self._waiting)

    async def request(self, wanted: PolicyVersion, *, reason: str, by: str) -> Rollback:
        """Ask to go back to ``wanted``; returns once the rollback is durable, and the loop carries it out.

        Raises:
            NotFoundError: no kept checkpoint holds it.
            CorruptionError: its checkpoint is damaged.
            ConflictError: another rollback was accepted at the same moment.
            BackpressureError: too many requests wait.
            UnavailableError: training ended, or the disk refused.
        """
        if self._closed:
            raise _stopped()
        if len(self._waiting) >= REQUESTS_MAX:
            raise BackpressureError(
                f"{REQUESTS_MAX} rollbacks wait for the end of an update", fix="ask again in a moment"
            )
        accepted: asyncio.Future[Rollback] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(wanted, reason, by, accepted))
        return await accepted

    async def decide(self, head: PolicyVersion, tree: LineageTree) -> bool:
        """Accept the first request that can be, and answer all; returns whether one was accepted.

        Called between two updates, while no checkpoint is written.
        """
        requests, self._waiting = self._waiting, []
        found: Rollback | None = None
        for request in requests:
            try:
                if request.accepted.done():  # its caller left
                    continue
                if found is not None:
                    raise ConflictError(
                        f"A rollback to {found.target} was accepted at the same moment",
                        fix="wait until it is finished, then ask again",
                    )
                found = await self._accept(request, head, tree)
            except TidegateError as error:
                _answer(request, error)
            else:
                _answer(request, found)
        return found is not None

    def close(self) -> None:
        """Training ended: refuse what waits and every later request."""
        self._closed = True
        for request in self._waiting:
            _answer(request, _stopped())
        self._waiting.clear()

    async def _accept(self, request: _Request, head: PolicyVersion, tree: LineageTree) -> Rollback:
        target = find_target(request.wanted, self._folder.versions(), tree)
        rollback = Rollback(head, target, request.reason, request.by, self._clock.now_s())
        try:
            # Now, while the run can still go on from where it is.
            await asyncio.to_thread(self._folder.verify, target)
            await asyncio.to_thread(self._file.write, rollback)
        except OSError as error:
            raise UnavailableError(
                f"The rollback to {target} could not be written",
                why=str(error),
                fix="free space on the learner's disk, then ask again",
            ) from error
        return rollback


def _answer(request: _Request, answer: Rollback | TidegateError) -> None:
    if request.accepted.done():
        return
    if isinstance(answer, Rollback):
        request.accepted.set_result(answer)
    else:
        request.accepted.set_exception(answer)


def _stopped() -> UnavailableError:
    return UnavailableError("The learner stopped before it could go back", fix="ask again once it runs")
