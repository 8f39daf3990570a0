"""The loop by which a running service takes over changed sections of its run file (``runtime.live_settings``).

Consumes the file that its process was started with: ``run.json`` of a run folder, or the mounted ``run.yaml``, which
the kubelet replaces up to two minutes after the ConfigMap. Produces the new sections, a line in the log, and an event
on EVENTS where the service tells operators (admission). Waits for time. A document that a run could not start with is
refused with its sentence, counted and logged, and the sections before it stay in force. A file that the system does
not let it read is read again at the next look.
"""

import asyncio
from typing import Any, cast

import msgspec

from tidegate.catalogue import process
from tidegate.core.errors import TidegateError
from tidegate.runtime.files import LOOK_PERIOD_S
from tidegate.runtime.live_settings import LiveSections
from tidegate.runtime.service import ServiceContext

EVENT = "settings"


class SettingsFollower:
    """Takes over what changes in the run file of one service; ``tells``: publishes an event for each change."""

    def __init__(self, context: ServiceContext, *, tells: bool = False) -> None:
        self._context = context
        self._tells = tells
        # The system did not let it read a file that had changed.
        self._missed = False

    async def follow(self) -> None:
        """Look at the file once a period until draining."""
        context = self._context
        context.stats.set(process.BUDGET_MAX_LAG, float(context.live.staleness.max_lag))
        if context.live.source is None:
            await context.drain.wait()
            return
        while not await context.drain.sleep(LOOK_PERIOD_S):
            await self.look()

    async def look(self) -> None:
        """Take over the sections that changed since the last look, or since the process read the file."""
        context, live = self._context, self._context.live
        if live.source is None or (not live.source.changed() and not self._missed):
            return
        before, self._missed = live.sections, False
        try:
            changed = live.take(await asyncio.to_thread(live.source.read))
        except OSError as error:  # no descriptor left, or a disk that does not answer: the file is read again
            self._missed = True
            context.log.warning("settings_not_read", error=str(error))
            return
        except TidegateError as error:
            context.stats.add(process.SETTINGS_REFUSED)
            context.log.warning("settings_refused", error=str(error))
            return
        if not changed:
            return
        context.stats.add(process.SETTINGS_CHANGED)
        context.stats.set(process.BUDGET_MAX_LAG, float(live.staleness.max_lag))
        told = changes(before, live.sections, changed)
        context.log.info("settings_changed", **told)
        if self._tells:
            try:
                await context.bus.event(EVENT, told)
            except TidegateError as error:  # the log has it, too
                context.log.warning("settings_event_lost", error=str(error))


def changes(before: LiveSections, now: LiveSections, names: list[str]) -> dict[str, Any]:
    """The sections that changed: what each field of theirs that differs was and is."""
    told: dict[str, Any] = {}
    for name in names:
        old, new = (msgspec.to_builtins(getattr(each, name)) for each in (before, now))
        if isinstance(new, dict):
            fields = cast("dict[str, Any]", new)
            told[name] = {
                key: {"was": old.get(key), "is": value}
                for key, value in fields.items()
                if value != old.get(key)
            }
        else:
            told[name] = {"was": old, "is": new}
    return told
