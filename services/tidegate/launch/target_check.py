"""Whether a run has reached its target, by the counters of its processes.

Statistics on the broker are hints: every service may publish them under any name. A run ends only when the processes
say the same, asked over their own addresses.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidegate.catalogue.services import declares
from tidegate.core.errors import TidegateError
from tidegate.core.targets import RunTarget
from tidegate.launch.board import Board
from tidegate.launch.run_drain import operator_channel
from tidegate.launch.run_record import RunRecord
from tidegate.wire.clients.lifecycle import LifecycleClient
from tidegate.wire.stats import ServiceStats

CALL_TIMEOUT_S = 5.0
# A claim that the processes do not confirm costs a call to each of them this often.
PERIOD_S = 1.0


class TargetCheck:
    """Asks the processes when the broker's statistics claim that the target is reached."""

    def __init__(self, record: RunRecord, target: RunTarget) -> None:
        self._record = record
        self._target = target
        self._asked_at_s = float("-inf")

    async def reached(
        self, claimed: Mapping[str, float], *, supervisor: Callable[[], ServiceStats] | None = None
    ) -> dict[str, float]:
        """The processes' own values once they, and not only ``claimed``, meet the target; else none.

        ``supervisor``: reads statistics of the process that asks.
        """
        now_s = time.monotonic()
        if not self._target.reached(claimed) or now_s - self._asked_at_s < PERIOD_S:
            return {}
        self._asked_at_s = now_s
        values = await own_values(self._record, reports=() if supervisor is None else (supervisor(),))
        return values if self._target.reached(values) else {}


async def own_values(record: RunRecord, *, reports: Sequence[ServiceStats] = ()) -> dict[str, float]:
    """Every statistic by name as ``Board.values`` merges them, from the processes that answer.

    ``reports``: of processes that have no address, such as the supervisor. Counters of a replicated service count from
    the start of its processes.
    """
    board = Board()
    for report in reports:
        board.put(report)
    asked = [
        _ask(record, service, index=index)
        for service, addresses in record.addresses.items()
        for index in range(len(addresses))
    ]
    for stats in await asyncio.gather(*asked):
        if stats is not None:
            board.put(stats)
    return board.values()


def reports_of_others(record: RunRecord, board: Board) -> list[ServiceStats]:
    """The broker's reports of services that have no address, without what a service that can be asked declares."""
    asked = [service for service, addresses in record.addresses.items() if addresses]
    return [
        msgspec.structs.replace(
            stats,
            values={
                name: value
                for name, value in stats.values.items()
                if not any(declares(service, name) for service in asked)
            },
        )
        for stats in board.latest().values()
        if stats.service not in asked
    ]


async def _ask(record: RunRecord, service: str, *, index: int) -> ServiceStats | None:
    channel = operator_channel(record, service, index=index)
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await LifecycleClient(channel, service=service).stats(now_s=time.time())
    except (TidegateError, TimeoutError):
        return None
    finally:
        await channel.close()
