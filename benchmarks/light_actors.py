"""Many actors in one process, each with the actor's own code, connections and server; their segments are made up.

``python -m benchmarks.light_actors FOLDER COUNT``: of a live run of segments, until it is terminated. Rollouts take as
long as the run's ``workload.latency`` says, and no work.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
import uvloop

from benchmarks.payloads import segment
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.main import assemble
from tidegate.core.errors import ConfigError
from tidegate.core.records import PolicySnapshot, Sampler, Task, VersionSpan
from tidegate.launch.run_folder import read_plan, read_record, settings_of
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle
from tidegate.runtime.ports import pick_ports
from tidegate.runtime.process import open_bus
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.service_credentials import accepted_tokens, channels_of
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.permissions import user_of

# Actors start one after the other, as a Deployment's pods do.
START_PAUSE_S = 0.02
# Their numbers, beside those that the run itself has.
FIRST_INDEX = 1000


class MadeUpEngine:
    """The same segment for every task, at once, under the policy that is newest then."""

    def __init__(self, control: EngineControl, settings: Settings) -> None:
        self._control = control
        self._num_steps = settings.workload.unroll_length
        self._tensors = segment(self._num_steps, settings.workload.num_envs)

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Every policy fits."""

    def check_task(self, task: Task) -> None:
        """Every task fits."""

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """A segment for each task."""
        control, now_s = self._control, time.time()
        newest = control.newest
        assert newest is not None
        if control.serving is not newest:
            control.swapped(newest, seconds=0.0)
        sample = Sample(
            tensors=self._tensors,
            spans=(VersionSpan(newest.version, 0, self._num_steps),),
            num_steps=self._tensors["valid"].size,
        )
        return [Rollouts(task, (sample,), now_s, now_s) for task in tasks]

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """It answers no prompts."""
        raise ConfigError("An engine of made-up segments answers no prompts")

    def close(self) -> None:
        """It holds nothing."""


async def run_actors(folder: Path, *, count: int) -> None:
    """Run until a signal; what they hold is then released.

    Raises:
        NotFoundError: there is no such run.
    """
    _, plan = read_plan(folder)
    drain = Drain()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, drain.request)
    own = read_record(folder, user=user_of("actor"))
    settings = settings_of(folder, own, plan.file)
    ports = pick_ports(count)
    actors: list[asyncio.Task[int]] = []
    for index, port in enumerate(ports):
        one = msgspec.structs.replace(
            settings, listen=f"127.0.0.1:{port}", instance=f"actor-{FIRST_INDEX + index}"
        )
        config: ActorConfig = plan.services["actor"]
        actors.append(asyncio.create_task(_actor(one, config, index=FIRST_INDEX + index, drain=drain)))
        if await drain.sleep(START_PAUSE_S):
            break
    await asyncio.gather(*actors)


async def _actor(settings: Settings, config: ActorConfig, *, index: int, drain: Drain) -> int:
    async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
        control = EngineControl()
        return assemble(context, config, engine=MadeUpEngine(control, settings), control=control)

    accepted, clock = accepted_tokens(settings), SystemClock()
    ports = ProcessPorts(
        clock=clock,
        drain=drain,
        log=structlog.get_logger(settings.instance),
        channels=channels_of(settings, "actor"),
        open_telemetry=lambda _stats: Telemetry(settings.telemetry, exporter=None),
        open_bus=partial(open_bus, settings, settings.instance, clock),
        open_server=lambda registrations, meter: RpcServer(registrations, accepted, meter=meter),
        record_usage=lambda _stats: None,
        on_built=lambda: None,
    )
    spec = ServiceSpec(name="actor", config_type=ActorConfig, build=build)
    return await ServiceLifecycle(spec, config, settings, index=index, ports=ports).run()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    uvloop.run(run_actors(Path(sys.argv[1]), count=int(sys.argv[2])))
