"""The processes of one run: the broker and every service, started together and stopped in order.

Services stop in the order of the flow of work: actors first, then the services that process their output, then those
of ledger and journal, and the broker last.
"""

import os
import sys
import time
from math import ceil
from pathlib import Path

from tidegate.catalogue import supervisor as supervisor_stats
from tidegate.launch import broker as nats
from tidegate.launch import usage
from tidegate.launch.board import Board
from tidegate.launch.live_run import BROKER, SUPERVISOR
from tidegate.launch.run_folder import ProcessesRecord, ProcessRecord, write_processes, write_record
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.launch.services import SERVICES, instances
from tidegate.launch.supervisor import ProcessFailedError, ProcessSpec, Supervisor
from tidegate.wire.stats import ServiceStats

# Many processes with little work each: a second thread in one only takes the core of another.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Between asking a service to drain and killing it: its own timeout and what follows it in its lifecycle.
STOP_GRACE_S = 5.0
BROKER_GRACE_S = 10.0
# Walking the page tables of a large process takes milliseconds, so memory is sampled less often than CPU time, with
# growing periods (memory grows early), and once more at the end, because a run may be shorter than the first period.
MEMORY_PERIOD_S, MEMORY_PERIOD_S_MAX = 5.0, 60.0


class Platform:
    """All processes of a run folder."""

    def __init__(self, folder: Path, record: RunRecord, plan: RunPlan, *, target: str) -> None:
        """``target`` is written to ``processes.json``, for ``tidegate status``."""
        self._target = target
        self.folder = folder
        self.record = record
        self.plan = plan
        self.memory_peak_mb: dict[str, float] = {}
        self._started_at_s = time.time()
        self._supervisor = Supervisor(on_change=self._write_processes)
        self._ended = False
        self._cpu_seen: dict[str, tuple[float, float, int]] = {}
        self._memory_mb: dict[str, float] = {}
        self._memory_read_s = self._started_at_s
        self._memory_period_s = MEMORY_PERIOD_S

    @property
    def failure(self) -> ProcessFailedError | None:
        """The failure that ends the platform; None while there is none."""
        return self._supervisor.failure

    def problem(self) -> str:
        """Why the platform does not work: its failure, or the processes that crash at every start."""
        return str(self.failure) if self.failure is not None else self._supervisor.unstable()

    async def start(self) -> None:
        """Start the broker and, once it answers, every service.

        Raises:
            ConfigError: there is no nats-server.
            UnavailableError: the broker did not become ready.
        """
        config = self.folder / "nats-server.conf"
        broker = nats.process(config, log=self._log(BROKER))
        write_record(self.folder, self.record)
        nats.write_config(
            config,
            self.record.broker,
            server_name=self.record.run_id,
            store=self.folder.resolve() / "nats",
        )
        self._supervisor.start(broker)
        await nats.wait_ready(self.record.broker)
        for service in SERVICES:
            for index, instance in enumerate(instances(service, replicas=self.plan.replicas[service])):
                self._supervisor.start(self._service(service, index, instance))

    def _service(self, service: str, index: int, instance: str) -> ProcessSpec:
        threads = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
        serve = ["-m", "tidegate.cli.main", "serve", service]
        num_ranks = self.plan.services[service].ranks if service == "learner" else 1
        return ProcessSpec(
            name=instance,
            command=[
                *(self._ranks_command(num_ranks) if num_ranks > 1 else [sys.executable]),
                *(*serve, "--run-dir", str(self.folder.resolve()), "--index", str(index)),
            ],
            log=self._log(instance),
            environment=threads,
        )

    def _ranks_command(self, num_ranks: int) -> list[str]:
        """How to start a program as so many ranks, which end together.

        No rank is restarted alone: when one exits torchrun ends the others, and the supervisor restarts all.
        """
        python, guard = sys.executable, "tidegate.launch.guarded"
        drain_s = ceil(self.plan.file.drain_timeout_s + STOP_GRACE_S)
        return [
            *(python, "-m", guard, python, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"),
            *(f"--nproc-per-node={num_ranks}", f"--shutdown-timeout={drain_s}"),
        ]

    def _log(self, instance: str) -> Path:
        return self.folder / "logs" / f"{instance}.log"

    def notice(self, board: Board, *, connected: bool, now_s: float) -> None:
        """Mark the instances that reported ready lately; ``connected``: the broker answers."""
        if connected:
            self._supervisor.mark_ready(BROKER)
        for instance, stats in board.latest().items():
            if stats.state == "ready" and now_s - stats.at_s < 1.0:
                self._supervisor.mark_ready(instance)

    def readiness(self) -> tuple[int, int]:
        """(services that reported ready, all services)."""
        states = [view.state for view in self._supervisor.view() if view.name != BROKER]
        return states.count("running"), len(states)

    def restarts(self) -> dict[str, int]:
        """Restarts of each process."""
        return {view.name: view.restarts for view in self._supervisor.view()}

    def cpu_s(self) -> float:
        """CPU seconds of the whole process tree so far, this process included."""
        return usage.tree_cpu_s([view.pid for view in self._supervisor.view() if view.pid is not None])

    def statistics(self, *, now_s: float) -> ServiceStats:
        """The supervisor's own statistics: restarts, CPU and memory of every process."""
        values: dict[str, float] = {}
        labels: dict[str, str] = {}
        views = self._supervisor.view()
        if now_s - self._memory_read_s > self._memory_period_s:
            self.read_memory()
            self._memory_read_s = now_s
            self._memory_period_s = min(2 * self._memory_period_s, MEMORY_PERIOD_S_MAX)
        for name, pid in self._pids():
            if pid is not None:
                values[supervisor_stats.CPU_SHARE_OF.member(name)] = self._cpu_share(name, pid, now_s=now_s)
            values[supervisor_stats.PSS_MB_OF.member(name)] = self._memory_mb.get(name, 0.0)
        values[supervisor_stats.RESTARTS] = sum(view.restarts for view in views)
        for view in views:
            values[supervisor_stats.RESTARTS_OF.member(view.name)] = view.restarts
            labels[view.name] = view.state
        return ServiceStats(
            service=SUPERVISOR,
            instance=SUPERVISOR,
            state="ready",
            at_s=now_s,
            started_at_s=self._started_at_s,
            values=values,
            labels=labels,
        )

    def _cpu_share(self, name: str, pid: int, *, now_s: float) -> float:
        cpu_s = usage.cpu_s(pid)
        before_s, before_cpu_s, before_pid = self._cpu_seen.get(name, (now_s, cpu_s, pid))
        self._cpu_seen[name] = (now_s, cpu_s, pid)
        if pid != before_pid or now_s <= before_s:
            return 0.0
        return max(0.0, cpu_s - before_cpu_s) / (now_s - before_s)

    def _pids(self) -> list[tuple[str, int | None]]:
        """This process and its children; None between an exit and the restart."""
        return [(SUPERVISOR, os.getpid()), *((view.name, view.pid) for view in self._supervisor.view())]

    def read_memory(self) -> None:
        """Sample the memory of each process and update its peak."""
        for name, pid in self._pids():
            if pid is not None:
                memory_mb = usage.pss_mb(pid)
                self._memory_mb[name] = memory_mb
                self.memory_peak_mb[name] = max(memory_mb, self.memory_peak_mb.get(name, 0.0))

    def trim_logs(self) -> None:
        """Truncate logs that exceed their bound."""
        self._supervisor.trim_logs()

    async def stop_services(self) -> None:
        """Drain every service, in order."""
        orders = sorted({entry.stop_order for entry in SERVICES.values()})
        for order in orders:
            names = [
                instance
                for service, entry in SERVICES.items()
                if entry.stop_order == order
                for instance in instances(service, replicas=self.plan.replicas[service])
            ]
            await self._supervisor.stop(names, grace_s=self.plan.file.drain_timeout_s + STOP_GRACE_S)

    async def stop_broker(self) -> None:
        """Stop the broker, after all services."""
        await self._supervisor.stop([BROKER], grace_s=BROKER_GRACE_S)
        self._ended = True
        self._write_processes()

    def kill_all(self) -> None:
        """SIGKILL to every process that is still running."""
        self._supervisor.kill_all()
        self._ended = True
        self._write_processes()

    def _write_processes(self) -> None:
        processes = {
            view.name: ProcessRecord(pid=view.pid, state=view.state, restarts=view.restarts)
            for view in self._supervisor.view()
        }
        write_processes(
            self.folder,
            ProcessesRecord(
                supervisor_pid=os.getpid(),
                started_at_s=self._started_at_s,
                ended=self._ended,
                processes=processes,
                target=self._target,
            ),
        )
