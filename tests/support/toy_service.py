"""A service of a few lines, to watch the lifecycle with: ``python -m tests.support.toy_service MODE SETTINGS``."""

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any, cast

import msgspec

from tidegate.catalogue.kinds import Counter
from tidegate.core.errors import ConfigError, ConflictError
from tidegate.launch.log_lines import log_plain_lines
from tidegate.runtime.config import Settings
from tidegate.runtime.process import run_service
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec

COMPUTING_S = 1.0
GO_FILE = "go"
TURNS = Counter("turns_total", "{turn}", "Times that the loop began.", exported=False)


async def build(context: ServiceContext, mode: str) -> ServiceParts:
    """Loops that behave, crash, end early or never end, or settings that are refused, as ``mode`` says."""
    if mode == "refuse":
        raise ConfigError("workload.env: There is no environment 'Nope-v0'", fix="name another one")

    async def loop() -> None:
        context.stats.add(TURNS)
        match mode:
            case "crash":
                raise ConflictError("Another learner took over")
            case "bug":
                raise ZeroDivisionError
            case "end":
                return
            case "stubborn":
                while True:
                    await context.drain.wait()
                    await _forever()
            case "defect":
                await context.bus.subscribe(context.topology.control("toy"), _fail)
                await context.drain.wait()
            case "complete":
                context.drain.complete()
            case "held":
                _ = asyncio.get_running_loop().run_in_executor(None, time.sleep, 600.0)
                raise MemoryError
            case "computing":
                compute(COMPUTING_S)
                await context.drain.wait()
            case "silent":
                client = cast("Any", context.bus)._client
                client._ping_interval_task.cancel()
                await context.drain.wait()
            case _:
                await context.drain.wait()

    return ServiceParts(loops={"loop": loop})


def compute(cpu_s: float) -> None:
    """Use this much CPU time without a pause."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


async def _fail(_data: bytes, _headers: dict[str, str]) -> None:
    raise ZeroDivisionError


async def _forever() -> None:
    await asyncio.Event().wait()


def turn(context: ServiceContext, mode: str) -> Coroutine[Any, Any, None] | None:
    """In the mode "standby", wait until the test made a file in the service's folder."""
    return _file_or_drain(context) if mode == "standby" else None


async def _file_or_drain(context: ServiceContext) -> None:
    while not (context.data_dir / GO_FILE).exists():
        if await context.drain.sleep(0.05):
            return


if __name__ == "__main__":
    log_plain_lines()
    settings = msgspec.json.decode(sys.argv[2], type=Settings)
    sys.exit(run_service(ServiceSpec("admission", str, build, turn=turn), sys.argv[1], settings))
