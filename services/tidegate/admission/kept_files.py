"""Admission's small state outlives its volume: each file is also the newest message of a subject of its own.

It is what operators asked for, how the run ends, what was scaled to 0, and the budgets of the objectives. A folder that
holds it is right. An empty one, on another node or a new volume, gets it from the broker, whose streams have copies
where the installation asks for them. Without it a pause would end with the node, and each objective would have its
whole budget again.

Where several pods of admission take turns, the folder of one is right only as far as no other published since.
"""

import asyncio
from pathlib import Path

import msgspec

from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.limits_subject import LimitsSubject
from tidegate.admission.slo_file import STATE_FILE
from tidegate.catalogue import admission as statistics
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.json_text import NOT_JSON
from tidegate.runtime.files import replace_file
from tidegate.runtime.service import ServiceContext

PAUSE_FILE = "pause.json"
# Of the cluster loop: the numbers of replicas that it knows, and what the TrainingRun asks for.
SCALE_FILE = "scale.json"
OVERRIDES_FILE = "ask.json"
FILES = (PAUSE_FILE, COMPLETION_FILE, STATE_FILE, SCALE_FILE, OVERRIDES_FILE)
# In a folder whose files are those of this run: of each one's newest message that this folder knows, the sequence.
MARKER = "kept"
PUBLISH_TIMEOUT_S = 5.0


class KeptFiles:
    """The files of one folder, and their copies in CONTROL; a message each, which the next one replaces."""

    def __init__(self, context: ServiceContext, subject: LimitsSubject) -> None:
        """``subject``: says whether another admission took over, whose state is not to be overwritten."""
        self._context = context
        self._subject = subject
        self._folder: Path = context.data_dir
        # As published by this process, by file name; an absent file is empty.
        self._published: dict[str, bytes] = {}
        self._sequences: dict[str, int] = {}
        # An older state that is being repeated must not arrive behind a newer one.
        self._publishing = asyncio.Lock()

    async def restore(self) -> None:
        """Fill an empty folder, or one that another pod's state has overtaken, before anything reads it.

        Raises:
            UnavailableError: JetStream did not answer, or the disk refused a file.
        """
        is_filled = (self._folder / MARKER).exists()
        if is_filled and not self._subject.has_others:
            return
        known = self._known()
        restored: list[str] = []
        topology, bus = self._context.topology, self._context.bus
        for name in FILES:
            stored = await bus.last(topology.stream("CONTROL"), topology.control(_subject(name)))
            data = b"" if stored is None else stored.data
            self._published[name] = data
            if stored is None:
                continue
            self._sequences[name] = stored.sequence
            is_here = known.get(name) == stored.sequence if is_filled else (self._folder / name).exists()
            if not is_here and data != self._read(name):
                self._write(name, data)
                restored.append(name)
        self._write_marker()
        if restored:
            self._context.log.warning("state_restored", files=restored)

    def _known(self) -> dict[str, int]:
        try:
            return msgspec.json.decode((self._folder / MARKER).read_bytes(), type=dict[str, int])
        except (OSError, *NOT_JSON):
            return {}

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return b""

    def _write_marker(self) -> None:
        self._write(MARKER, msgspec.json.encode(self._sequences))

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if data:
                replace_file(self._folder / name, data)
            else:
                (self._folder / name).unlink(missing_ok=True)
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
            data = self._read(name)
        except OSError as error:
            context.log.warning("state_not_read", file=name, error=str(error))
            return True
        if self._published.get(name) == data:
            return True
        try:
            await self._subject.check()
            stored = await context.bus.publish(
                context.topology.control(_subject(name)),
                data,
                message_id=f"{name}-{context.clock.now_s():.6f}",
                deadline_s=PUBLISH_TIMEOUT_S,
            )
        except TidegateError as error:
            context.stats.add(statistics.STATE_NOT_PUBLISHED)
            context.log.warning("state_not_published", file=name, error=str(error))
            return False
        self._published[name], self._sequences[name] = data, stored.sequence
        if self._subject.has_others:
            try:
                self._write_marker()
            except UnavailableError as error:  # the next restore reads what this folder has from the broker
                context.log.warning("state_not_noted", file=name, error=str(error))
        return True


def _subject(name: str) -> str:
    """The last token of a file's subject, such as ``admission_pause``."""
    return f"admission_{Path(name).stem}"
