"""The processes of one run: the broker and every service, started together and stopped in order.

Services stop in the order of the flow of work: actors first, then the services that process their output, then those
of ledger and journal, and the broker last.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tidegate.catalogue import supervisor as supervisor_stats
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.launch import broker as nats
from tidegate.launch import usage
from tidegate.launch.board import Board
from tidegate.launch.cores import OTHERS, cores_variable
from tidegate.launch.fork_server.client import ServiceStarter
from tidegate.launch.fork_server.kinds import LEARNER, PRELOADED
from tidegate.launch.fork_server.preloading import end_unused_fork_servers, is_supported
from tidegate.launch.live_run import BROKER
from tidegate.launch.preflight import Preflight, PreflightError
from tidegate.launch.processes import (
    STOP_GRACE_S,
    fork_server_process,
    fork_servers,
    log_of,
    service_process,
)
from tidegate.launch.run_folder import (
    ProcessesRecord,
    ProcessRecord,
    as_user,
    settings_of,
    write_passwords,
    write_processes,
    write_record,
)
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.launch.services import SERVICES, instances
from tidegate.launch.streams import connect_and_create_streams
from tidegate.launch.supervisor import Supervisor
from tidegate.runtime.backup_state import backup_problem, backup_sentence, read_state
from tidegate.runtime.described_environment import write_description
from tidegate.runtime.disk import disk_problem, is_read_only
from tidegate.runtime.ports import pick_ports
from tidegate.wire.permissions import BOOTSTRAP, OPERATOR, SUPERVISOR, user_of
from tidegate.wire.stats import ServiceStats

# Processes that run no service of their own; they are ready without reporting it.
HELPERS = (BROKER, *PRELOADED)
BROKER_GRACE_S = 10.0
# Between two restarts of a broker whose streams store nothing: a disk that fails again must not stop it for good.
BROKER_REPAIR_PERIOD_S = 10.0
# Walking the page tables of a large process takes milliseconds, so memory is sampled less often than CPU time, with
# growing periods (memory grows early), and once more at the end, because a run may be shorter than the first period.
MEMORY_PERIOD_S, MEMORY_PERIOD_S_MAX = 5.0, 60.0


class Platform:
    """All processes of a run folder."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        plan: RunPlan,
        *,
        target: str,
        beside: "Sequence[subprocess.Popen[bytes]]" = (),
    ) -> None:
        """``target`` is written to ``processes.json``, for ``tidegate status``. ``beside``: see ``Supervisor``."""
        self._target = target
        self.folder = folder
        self._passwords = nats.new_passwords()
        [self._monitor_port] = pick_ports(1, taken=record.ports)
        self._broker_repaired_s = float("-inf")
        # The supervisor's own connection reads statistics and events.
        self.record = as_user(record, OPERATOR, self._passwords)
        self.plan = plan
        self.memory_peak_mb: dict[str, float] = {}
        self._started_at_s = time.time()
        self._starter = ServiceStarter(title=f"--run-dir {folder.resolve()}")
        self._supervisor = Supervisor(
            on_change=self._write_processes,
            start=self._starter.start,
            disk_full=lambda: bool(self.disk_problem()),
            beside=beside,
        )
        self._ended = False
        self._read_only: UnavailableError | None = None
        self._unwritten = False
        self._cpu_seen: dict[str, tuple[float, float, int]] = {}
        self._memory_mb: dict[str, float] = {}
        self._memory_read_s = self._started_at_s
        self._memory_period_s = MEMORY_PERIOD_S

    @property
    def failure(self) -> TidegateError | None:
        """The failure that ends the platform; None while there is none.

        A read-only disk is one: processes wait for space on a full disk, but the file system cannot be repaired while
        they have files open on it.
        """
        return self._read_only or self._supervisor.failure

    def disk_problem(self) -> str:
        """Why the run's disk cannot be written, as a sentence; empty while there is space."""
        return disk_problem(self.folder)

    def problem(self) -> str:
        """Why the platform does not work: its failure, or the processes that crash at every start."""
        return str(self.failure) if self.failure is not None else self._supervisor.unstable()

    async def start(self, preflight: Preflight | None) -> None:
        """Start the fork servers, the learner and the broker and, once that answers, the other services.

        Meanwhile the ``preflight`` tries the environment; nothing of a run that cannot work gets further than loading
        its libraries.

        Raises:
            ConfigError: there is no nats-server.
            PreflightError: the environment, its settings or the policy cannot work.
            UnavailableError: the broker did not become ready.
        """
        if preflight is not None:
            preflight.check()
        try:
            await self._start(preflight)
        except PreflightError:
            await self._supervisor.stop([view.name for view in self._supervisor.view()], grace_s=0.0)
            raise

    async def _start(self, preflight: Preflight | None) -> None:
        config = self.folder / "nats-server.conf"
        broker = nats.process(
            config,
            log=log_of(self.folder, BROKER),
            environment=cores_variable(self.plan.file.cores, OTHERS),
        )
        write_record(self.folder, self.record)
        write_passwords(self.folder, self._passwords)
        nats.write_config(
            config,
            self.record.broker.port,
            passwords=self._passwords,
            run_id=self.record.run_id,
            store=self.folder.resolve() / "nats",
            monitor_port=self._monitor_port,
        )
        for name in fork_servers(self.plan):
            self._supervisor.start(fork_server_process(self.plan, self.folder, name))
        # torch takes seconds to load, and every other service waits for the learner's first version.
        self._start_service(LEARNER)
        self._supervisor.start(broker)
        await nats.wait_ready(self.record.broker)
        await self._create_streams()
        if preflight is not None:
            described = await preflight.result()
            write_description(self.folder / "data", self.plan.file.workload, described.description)
        for service in SERVICES:
            if service != LEARNER:
                self._start_service(service)
        end_unused_fork_servers()

    async def _create_streams(self) -> None:
        record = as_user(self.record, BOOTSTRAP, self._passwords)
        services = self.plan.services
        await connect_and_create_streams(
            settings_of(self.folder, record, self.plan.file),
            actor=services["actor"],
            environment=services["environment"],
        )

    def _start_service(self, service: str) -> None:
        for index, instance in enumerate(instances(service, replicas=self.plan.replicas[service])):
            process = service_process(
                self.plan,
                self.folder,
                service,
                index=index,
                instance=instance,
                password=self._passwords[user_of(service)],
            )
            self._supervisor.start(process)

    def notice(self, board: Board, *, connected: bool, now_s: float) -> None:
        """Mark the instances that reported ready lately; ``connected``: the broker answers."""
        if connected:
            self._supervisor.mark_ready(BROKER)
        for name in PRELOADED:
            if self._starter.is_ready(name):
                self._supervisor.mark_ready(name)
        for instance, stats in board.latest().items():
            if stats.state == "ready" and now_s - stats.at_s < 1.0:
                self._supervisor.mark_ready(instance)

    def readiness(self) -> tuple[int, int]:
        """(services that reported ready, all services)."""
        states = [view.state for view in self._supervisor.view() if view.name not in HELPERS]
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
        if (backup := read_state(self.folder)) is not None:
            labels[supervisor_stats.BACKUP] = backup_sentence(backup, running=True, now_s=now_s)
            labels[supervisor_stats.BACKUP_PROBLEM] = backup_problem(backup, now_s=now_s)
        labels[supervisor_stats.DISK_PROBLEM] = problem = self.disk_problem()
        if problem and is_read_only(self.folder):
            self._read_only = UnavailableError(problem)
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

    async def repair_broker(self, *, now_s: float) -> None:
        """Restart the broker when the disk has space again and a stream that found none still stores nothing.

        A kill loses nothing: what the broker acknowledged is in its files.
        """
        if now_s - self._broker_repaired_s < BROKER_REPAIR_PERIOD_S or self.disk_problem():
            return
        if await nats.has_write_error(self._monitor_port):
            self._broker_repaired_s = now_s
            self._supervisor.kill(BROKER)

    def rewrite_processes(self) -> None:
        """Write ``processes.json`` again if the disk refused the newest one."""
        if self._unwritten:
            self._write_processes()

    def tidy(self) -> None:
        """Truncate logs that exceed their bound, and reap processes that lost their parent."""
        self._supervisor.trim_logs()
        if is_supported():
            self._supervisor.reap_orphans()

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

    async def stop_helpers(self) -> None:
        """Stop the broker and the fork servers, after all services."""
        await self._supervisor.stop(list(HELPERS), grace_s=BROKER_GRACE_S)
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
        record = ProcessesRecord(
            supervisor_pid=os.getpid(),
            started_at_s=self._started_at_s,
            ended=self._ended,
            processes=processes,
            target=self._target,
        )
        try:
            write_processes(self.folder, record)
        except OSError:  # the disk is full: it only informs other commands, so the run goes on
            self._unwritten = True
        else:
            self._unwritten = False
