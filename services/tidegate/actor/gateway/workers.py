"""Workers beside a gateway: programs that each play many episodes, started and kept alive by the actor.

A worker claims episodes over HTTP as any remote agent does; address and key are in its environment. One that ends is
started again after a pause that grows with each early end; one that only ends early ends the actor, whose restarts and
reason everybody sees. All of them end with the actor.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from tidegate.actor.gateway.config import OPERATOR_KEY_VARIABLE, GatewayConfig
from tidegate.actor.gateway.programs import arguments_of, environment_of, run_program
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import UnavailableError
from tidegate.runtime.clock import Clock
from tidegate.runtime.retrying import Backoff
from tidegate.runtime.stats_board import StatsBoard

# Of this package: plays environments of `verifiers`, for a run file that names one and no program.
LIBRARY_WORKER = ("python", "-m", "tidegate.environment.libraries.verifiers_worker")
# The name of a worker's process, which its claims may give.
WORKER_VARIABLE = "TIDEGATE_WORKER"
BACKOFF = Backoff(start_s=1.0, max_s=60.0)
# One that lived this long did not fail at its start.
LIVED_S = 60.0
# So many ends in a row at the start, after pauses of up to 1, 2, 4 and 8 seconds, are no accident.
EARLY_ENDS_MAX = 5


class AgentWorkers:
    """The workers of one actor."""

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        stats: StatsBoard,
        log: "structlog.stdlib.BoundLogger",
        *,
        given: Mapping[str, str],
        ended: Callable[[str, str], None],
    ) -> None:
        """``given``: variables of the workers besides the gateway's own.

        ``ended``: called with the name of each process that ended, which its environment has, and why.
        """
        self._config = config
        self._clock = clock
        self._stats = stats
        self._log = log
        self._given = dict(given)
        self._ended = ended

    async def run(self, *, url: str, key: str, stopping: asyncio.Event) -> None:
        """Keep ``config.workers`` of them until ``stopping``, and end them then. ``key``: claims episodes.

        Raises:
            UnavailableError: one of them ends whenever it is started.
        """
        config = self._config
        given = {
            **self._given,
            "TIDEGATE_GATEWAY_URL": url,
            OPERATOR_KEY_VARIABLE: key,
            "TIDEGATE_WORKER_EPISODES": str(-(-config.episodes_max // config.workers)),
        }
        environment = environment_of(os.environ, passed=config.pass_env, given=given)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(config.workers):
                    group.create_task(self._keep(number, environment, stopping))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def _keep(self, number: int, environment: Mapping[str, str], stopping: asyncio.Event) -> None:
        pauses_s, num_early = BACKOFF.pauses_s(), 0
        arguments = arguments_of(self._config.command or LIBRARY_WORKER, prompt="")
        while not stopping.is_set():
            began_s = self._clock.monotonic_s()
            name = f"{number}-{secrets.token_hex(4)}"
            try:
                end = str(
                    await run_program(
                        arguments,
                        environment={**environment, WORKER_VARIABLE: name},
                        ended=stopping,
                        deadline_s=None,
                        kill_grace_s=self._config.kill_grace_s,
                    )
                )
            except UnavailableError as error:
                end = str(error)
            if stopping.is_set():
                return
            self._ended(name, end)
            self._stats.add(gateway_stats.PROGRAMS_FAILED)
            num_early += 1
            if self._clock.monotonic_s() - began_s > LIVED_S:
                pauses_s, num_early = BACKOFF.pauses_s(), 0
            if num_early == EARLY_ENDS_MAX:
                raise UnavailableError(
                    "A worker of actor.gateway ends whenever it is started",
                    why=end,
                    fix="correct what it says, or actor.gateway.command",
                )
            pause_s = next(pauses_s)
            self._log.warning("gateway_worker_ended", worker=number, why=end, again_in_s=pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
