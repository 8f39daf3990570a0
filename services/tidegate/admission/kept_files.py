"""Admission's small state outlives its volume: each file is also the newest message of a subject of its own.

It is what operators asked for, how the run ends, what was scaled to 0, and the budgets of the objectives. A folder that
holds it is right. An empty one, on another node or a new volume, gets it from the broker, whose streams have copies
where the installation asks for them. Without it a pause would end with the node, and each objective would have its
whole budget again.
"""

import asyncio
from pathlib import Path

from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.slo_file import STATE_FILE
from tidegate.catalogue import admission as statistics
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.files import replace_file
from tidegate.runtime.service import ServiceContext

PAUSE_FILE = "pause.json"
# Of the cluster loop: the numbers of replicas that it knows, and what the TrainingRun asks for.
SCALE_FILE = "scale.json"
OVERRIDES_FILE = "ask.json"
FILES = (PAUSE_FILE, COMPLETION_FILE, STATE_FILE, SCALE_FILE, OVERRIDES_FILE)
# In a folder whose files are those of this run.
MARKER = "kept"
PUBLISH_TIMEOUT_S = 5.0


class KeptFiles:
    """The files of one folder, and their copies in CONTROL; a message each, which the next one replaces."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._folder: Path = context.data_dir
        # As published by this process, by file name; an absent file is empty.
        self._published: dict[str, bytes] = {}
        # An older state that is being repeated must not arrive behind a newer one.
        self._publishing = asyncio.Lock()

    async def restore(self) -> None:
        """Fill an empty folder, before anything reads it.

        Raises:
            UnavailableError: JetStream did not answer, or the disk refused a file.
        """
        if (self._folder / MARKER).exists():
            return
        restored: list[str] = []
        topology, bus = self._context.topology, self._context.bus
        for name in FILES:
            stored = await bus.last(topology.stream("CONTROL"), topology.control(_subject(name)))
            data = b"" if stored is None else stored.data
            self._published[name] = data
            if data and not (self._folder / name).exists():
                self._write(name, data)
                restored.append(name)
        self._write(MARKER, b"")
        if restored:
            self._context.log.warning("state_restored", files=restored)

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._folder / name, data)
        except OSError as error:
            raise UnavailableError(
                f"Admission's {name} cannot be written",
                why=str(error),
                fix="free space in its volume: without the file a pause or a completion of the run would be forgotten",
            ) from error

    async def publish(self) -> None:
        """Publish the files that changed. One that the broker does not take is published the next time."""
        async with self._publishing:
            for name in FILES:
                if not await self._publish(name):
                    return

    async def _publish(self, name: str) -> bool:
        """Whether the broker takes messages."""
        context = self._context
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            context.log.warning("state_not_read", file=name, error=str(error))
            return True
        if self._published.get(name) == data:
            return True
        try:
            await context.bus.publish(
                context.topology.control(_subject(name)),
                data,
                message_id=f"{name}-{context.clock.now_s():.6f}",
                deadline_s=PUBLISH_TIMEOUT_S,
            )
        except TidegateError as error:
            context.stats.add(statistics.STATE_NOT_PUBLISHED)
            context.log.warning("state_not_published", file=name, error=str(error))
            return False
        self._published[name] = data
        return True


def _subject(name: str) -> str:
    """The last token of a file's subject, such as ``admission_pause``."""
    return f"admission_{Path(name).stem}"
