"""Writing checkpoints beside the training: one at a time, the state copied before, the disk waited for meanwhile."""

import asyncio
import contextlib

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient


class Checkpointing:
    """At most one write under way; ``begin`` waits for the one before. ``newest`` is the last that is durable."""

    def __init__(
        self, context: ServiceContext, folder: CheckpointFolder, store: TrajectoryStoreClient
    ) -> None:
        """Nothing is under way."""
        self._context = context
        self._folder = folder
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._requests: list[asyncio.Future[PolicyVersion]] = []
        self.newest: PolicyVersion | None = None

    @property
    def requested(self) -> bool:
        """Whether somebody waits for a checkpoint that was not begun yet."""
        return bool(self._requests)

    async def request(self) -> PolicyVersion:
        """Have one written at the next step boundary; returns its version once it is durable.

        Raises:
            UnavailableError: it could not be written, or training ended.
        """
        request: asyncio.Future[PolicyVersion] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        return await request

    async def begin(self, checkpoint: Checkpoint) -> None:
        """Start to write one; whoever asked until now is answered when it is durable."""
        await self.wait()
        requests, self._requests = self._requests, []
        self._task = asyncio.create_task(self._write(checkpoint, requests), name="checkpoint")

    async def wait(self) -> None:
        """Until nothing is under way."""
        if self._task is not None:
            await self._task
            self._task = None

    def close(self) -> None:
        """Tell whoever still waits that there will be none."""
        for request in self._requests:
            if not request.done():
                request.set_exception(UnavailableError("The learner stopped before it wrote a checkpoint"))
        self._requests.clear()

    async def _write(self, checkpoint: Checkpoint, requests: list[asyncio.Future[PolicyVersion]]) -> None:
        context = self._context
        version = checkpoint.progress.version
        try:
            path = await asyncio.to_thread(self._folder.write, checkpoint)
        except OSError as error:
            # A full disk must not end the training; what a crash would cost grows until one can be written again.
            context.stats.add(statistics.CHECKPOINT_FAILURES)
            context.log.exception("checkpoint_failed", version=str(version))
            for request in requests:
                if not request.done():
                    request.set_exception(
                        UnavailableError("The checkpoint cannot be written", why=str(error))
                    )
            return
        self.newest = version
        context.stats.add(statistics.CHECKPOINTS)
        context.stats.label(statistics.CHECKPOINTED, str(version))
        context.log.info("checkpoint_written", path=path.name, version=str(version))
        for request in requests:
            if not request.done():
                request.set_result(version)
        with contextlib.suppress(UnavailableError):  # the next checkpoint says it again
            # Any kept checkpoint may be the one to go on from, so payloads stay until the oldest holds them.
            await self._store.mark_checkpointed(self._folder.versions()[0])
