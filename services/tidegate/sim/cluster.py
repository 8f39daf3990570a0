"""The cluster of a scenario: a broker, a network, and one host per instance of each service."""

import asyncio
from pathlib import Path

import msgspec

from tidegate.actor.config import ActorConfig
from tidegate.admission.main import SPEC as ADMISSION
from tidegate.core.ids import RunId
from tidegate.core.records import Sampler
from tidegate.environment.config import EnvironmentConfig
from tidegate.inference.config import InferenceConfig
from tidegate.learner.config import LearnerConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig, Settings, StalenessConfig, TelemetryConfig, WorkloadConfig
from tidegate.runtime.instances import instance_name
from tidegate.runtime.stream_creation import ConsumerSettings, create_streams
from tidegate.sim.broker import SimulatedBroker
from tidegate.sim.event_log import EventLog
from tidegate.sim.host import Host, World
from tidegate.sim.management import BootstrapClient
from tidegate.sim.network import HEALTHY, Network
from tidegate.sim.oracle import Oracle
from tidegate.sim.paced_engine import Pace
from tidegate.sim.scenario import Scenario
from tidegate.sim.simulated_services import actor_spec, environment_spec, inference_spec, learner_spec
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.main import SPEC as TASK_QUEUE
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.main import SPEC as TRAJECTORY_STORE
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.main import SPEC as WEIGHT_DISTRIBUTION

RUN = RunId("sim")
FINISHED_WORK = ("ROLLOUTS", "TRAJECTORIES")
WORK_QUEUES = ("TASKS", *FINISHED_WORK)
PROMPTS = 64
# Faults last seconds, not minutes; timeouts are shortened in proportion, so that a run of a minute sees redeliveries,
# lost tasks and expired leases.
ACK_WAIT_S = 1.5
TASK_DEADLINE_S = 8.0
DRAIN_TIMEOUT_S = 3.0
LEASE_TIMEOUT_S = 4.0
KEEP_PROGRESS_S = 0.1
# Shorter than the longest absence of the inference service, so that tasks are released; longer than a restart.
INFERENCE_WAIT_S = 2.0
# Above the time up to which the service calls its network in its event loop, where no virtual time can pass.
CALL_S = 0.002
# Small, so that the trajectory store overshoots its bound on residents by little.
FETCH_MESSAGES_MAX = 2


class SimulatedCluster:
    """Everything that can fail, and the operations that faults use."""

    def __init__(self, scenario: Scenario, folder: Path, *, event_log: EventLog, oracle: Oracle) -> None:
        """``folder`` holds the files of the run, as a real run folder does."""
        self.scenario = scenario
        self.folder = folder
        self.oracle = oracle
        self.event_log = event_log
        self.network = Network(scenario.rng("network"))
        self.broker = SimulatedBroker(
            self.network,
            scenario.rng("broker"),
            work_queue_messages_max=scenario.small_streams,
            ack_wait_max_s=ACK_WAIT_S,
        )
        self.broker.on_stored = lambda stream, message: event_log.mark(
            f"{stream.limits.name} {message.sequence}"
        )
        self.settings = _settings(scenario, folder)
        self.world = World(
            self.settings,
            self.network,
            self.broker,
            event_log,
            on_defect=lambda what: oracle.violate("I9", what),
            on_drained=oracle.drained,
        )
        self.actor_paces = [Pace(rollout_s=scenario.rollout_s) for _ in range(scenario.num_actors)]
        self._actor_config = ActorConfig(
            slots=scenario.slots * scenario.group_size if scenario.writes_tokens else scenario.slots,
            prefetch=scenario.prefetch,
            ack_wait_s=ACK_WAIT_S,
            retry_delay_s=0.5,
            keep_progress_s=KEEP_PROGRESS_S,
            inference_wait_s=INFERENCE_WAIT_S,
        )
        self._environment_config = EnvironmentConfig(ack_wait_s=ACK_WAIT_S)
        self.learner_pace = Pace(update_s=scenario.update_s)
        self.inference_pace = Pace(call_s=CALL_S)
        # Tasks whose message was corrupted: they are on no stream until they are dropped.
        self.corrupted_tasks: set[str] = set()
        self.hosts = {host.instance: host for host in self._hosts()}
        # A second learner on the disk of the first; only a fault starts it.
        self.second_learner = self._learner()
        self.second_learner.held = True
        if scenario.kind == "text":
            _write_prompts(folder / "data" / "train.jsonl")

    def _hosts(self) -> list[Host]:
        scenario, world = self.scenario, self.world
        hosts = [
            Host(
                world,
                actor_spec(
                    self.actor_paces[index],
                    self.oracle,
                    scenario.rng(f"actor-{index}"),
                    world.clock,
                    writes_tokens=scenario.writes_tokens,
                    central_inference=scenario.central_inference,
                ),
                self._actor_config,
                index=index,
                policy_delay_s=scenario.policy_delays_s[index],
            )
            for index in range(scenario.num_actors)
        ]
        hosts += [
            Host(world, environment_spec(), self._environment_config, index=index)
            for index in range(scenario.num_environments)
        ]
        if scenario.central_inference:
            hosts.append(Host(world, inference_spec(self.inference_pace), InferenceConfig(), index=0))
        singles = (
            (
                TASK_QUEUE,
                TaskQueueConfig(task_deadline_s=TASK_DEADLINE_S, sweep_period_s=1.0, publish_deadline_s=2.0),
            ),
            (
                TRAJECTORY_STORE,
                TrajectoryStoreConfig(
                    max_resident_trajectories=self.scenario.max_resident,
                    fetch_messages_max=FETCH_MESSAGES_MAX,
                    lease_timeout_s=LEASE_TIMEOUT_S,
                ),
            ),
            (WEIGHT_DISTRIBUTION, WeightDistributionConfig()),
            (ADMISSION, ADMISSION.config_type()),
        )
        return [*hosts, self._learner(), *(Host(world, spec, config, index=0) for spec, config in singles)]

    def _learner(self) -> Host:
        config = LearnerConfig(
            checkpoint_every_steps=self.scenario.checkpoint_every_steps, republish_after_s=2.0
        )
        return Host(
            self.world, learner_spec(self.learner_pace, self.oracle, self.world.clock), config, index=0
        )

    @property
    def actors(self) -> list[Host]:
        """The hosts of the actors."""
        return [host for name, host in self.hosts.items() if name.startswith("actor-")]

    async def start(self) -> None:
        """Create the streams and start everything, in an order that the scenario draws (I9)."""
        bus = Bus(BootstrapClient(self.broker).as_client(), self.world.topology, self.world.clock)
        consumers = ConsumerSettings(
            task_ack_wait_s=ACK_WAIT_S,
            rollout_ack_wait_s=ACK_WAIT_S,
            unscored_groups_max=self._environment_config.max_ack_pending,
        )
        await create_streams(bus, self.settings, consumers)
        names = list(self.hosts)
        self.scenario.rng("start").shuffle(names)
        for name in names:
            self.hosts[name].start()

    async def heal(self) -> None:
        """Undo every fault."""
        scenario = self.scenario
        self.network.conditions = HEALTHY
        self.network.isolated = frozenset()
        if not self.broker.up:
            self.broker.restart()
        for stream in self.broker.streams.values():
            stream.closed = False
        for pace in self.actor_paces:
            pace.rollout_s, pace.stragglers = scenario.rollout_s, 0.0
        self.learner_pace.update_s = scenario.update_s
        self.inference_pace.call_s = CALL_S
        for host, delay_s in zip(self.actors, scenario.policy_delays_s, strict=True):
            host.slow_policy(delay_s)
        self.second_learner.hold(held=True)
        await self.second_learner.kill()
        for host in self.hosts.values():
            host.clock.ahead_s = 0.0
            host.hold(held=False)

    async def stop(self) -> None:
        """End every process, so that the files can be read and removed."""
        await asyncio.gather(*(host.kill() for host in (*self.hosts.values(), self.second_learner)))
        await asyncio.sleep(0)
        for process in self.world.gone:
            process.close_tasks()


def _settings(scenario: Scenario, folder: Path) -> Settings:
    text = scenario.kind == "text"
    replicas = {
        "actor": scenario.num_actors,
        "environment": scenario.num_environments,
        "task_queue": 1,
        "trajectory_store": 1,
        "weight_distribution": 1,
        "learner": 1,
        "admission": 1,
    }
    if scenario.central_inference:
        replicas["inference"] = 1
    return Settings(
        run=RUN,
        seed=scenario.seed,
        staleness=StalenessConfig(max_lag=scenario.max_lag, max_age_s=scenario.max_age_s),
        workload=WorkloadConfig(
            kind=scenario.kind,
            env="arithmetic" if text else "CartPole-v1",
            num_samples=scenario.group_size,
            num_envs=1,
            sampler=Sampler(),
            latency=scenario.latency,
        ),
        long_tail=scenario.long_tail,
        policy=PolicyConfig(kind="char_lm" if text else "mlp"),
        batch_size=scenario.batch_size,
        max_running=scenario.max_running,
        telemetry=TelemetryConfig(),
        drain_timeout_s=DRAIN_TIMEOUT_S,
        broker_url="",
        task_secret_path=str(_write_task_secret(folder)),
        addresses={
            service: [instance_name(service, index) for index in range(count)]
            for service, count in replicas.items()
        },
        data_dir=str(folder),
        credentials_dir="",  # its channels and servers have them in memory
    )


def _write_task_secret(folder: Path) -> Path:
    path = folder / "task_secret"
    path.write_bytes(b"the secret of the simulated task queue")
    return path


def _write_prompts(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"prompt_id": f"p{number}", "prompt": f"{number}+1=", "answer": str(number + 1), "bin": "all"}
        for number in range(PROMPTS)
    ]
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
