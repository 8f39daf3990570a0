"""Keeps the run's events in a cluster, where no `tidegate up` writes them down: evaluations above all.

Events are heard once, as they are published. Of those that were missed while admission was away, the newest evaluation
is read from EVENTS; the others stay there for a week.
"""

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.runtime.run_event_log import RunEventLog, read_events
from tidegate.runtime.service import ServiceContext

EVALUATION = "evaluation"


class KeptEvents:
    """Writes ``events.jsonl`` in admission's folder; bounded as the log of `tidegate up`."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._log = RunEventLog(context.data_dir)

    async def follow(self) -> None:
        """Write what comes until draining."""
        bus, topology = self._context.bus, self._context.topology
        await bus.subscribe(topology.event("*"), self._keep)
        await self._recall()
        await self._context.drain.wait()

    async def _recall(self) -> None:
        bus, topology = self._context.bus, self._context.topology
        try:
            stored = await bus.last(topology.stream("EVENTS"), topology.event(EVALUATION))
        except TidegateError as error:
            self._context.log.warning("evaluation_not_read", error=str(error))
            return
        if stored is None:
            return
        known = list(read_events(self._context.data_dir, EVALUATION))[-1:]
        try:
            is_known = known == [msgspec.json.decode(stored.data, type=dict[str, object])]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if not is_known:
            self._log.append(stored.data)

    async def _keep(self, data: bytes, _headers: dict[str, str]) -> None:
        self._log.append(data)
