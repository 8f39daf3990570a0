"""The operator in a process of its own: signals, health over gRPC, telemetry, the API server, and the loop."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import structlog
import yaml

from tidegate.admission.kubernetes.access import Access
from tidegate.catalogue import operator as statistics
from tidegate.core.errors import ConfigError
from tidegate.operator.cluster import RunCluster
from tidegate.operator.config import OperatorConfig
from tidegate.operator.jobs import ReleaseJobs, private_folder
from tidegate.operator.loop import OperatorLoop
from tidegate.operator.objects import RunKey
from tidegate.runtime import exit_codes
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.kubernetes_api import connect
from tidegate.runtime.retrying import FailedAttempt
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import open_telemetry
from tidegate.wire.call_permissions import Role

FIELD_MANAGER = "tidegate-operator"
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
NAMESPACE_VARIABLE, POD_VARIABLE = "TIDEGATE_NAMESPACE", "TIDEGATE_POD_NAME"
LEASE_VARIABLE, LEASE_DEFAULT = "TIDEGATE_LEASE", "tidegate-operator"
STOP_GRACE_S = 1.0


class NoTokens:
    """A server that answers health alone has no callers to recognise."""

    def role_of(self, token: str) -> Role | None:
        """None: no token is accepted."""
        return None


def chart_version(folder: Path) -> str:
    """The version in a chart's Chart.yaml.

    Raises:
        ConfigError: the folder holds no chart.
    """
    try:
        metadata = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
        return str(metadata["version"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} holds no chart", why=str(error), fix="name the chart's folder by `helm.chart`"
        ) from error


def access_of(environ: Mapping[str, str]) -> Access:
    """Where the operator's Lease is, and who holds it.

    Raises:
        ConfigError: the environment names no namespace.
    """
    namespace = environ.get(NAMESPACE_VARIABLE, "")
    if not namespace:
        raise ConfigError(
            f"{NAMESPACE_VARIABLE} is not set",
            why="the operator's Lease is in a namespace",
            fix="install by the chart, which sets it, or set it to the namespace of the Lease",
        )
    identity = environ.get(POD_VARIABLE) or f"{socket.gethostname()}-{os.getpid()}"
    lease = environ.get(LEASE_VARIABLE) or LEASE_DEFAULT
    return Access(
        namespace=namespace, identity=identity, release="", deployments=(), lease=lease, selector=""
    )


async def run_operator(config: OperatorConfig, *, listen: str) -> int:
    """Run until SIGTERM; returns the exit code. ``listen``: host:port of its health.

    Raises:
        ConfigError: the chart, the credentials or the environment are not there.
    """
    clock, drain = SystemClock(), Drain()
    access, chart = access_of(os.environ), chart_version(Path(config.helm.chart))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain.request)
    stats = StatsBoard(service="operator", instance=access.identity, started_at_s=clock.now_s())
    telemetry = open_telemetry(
        config.telemetry, service="operator", instance=access.identity, run="", board=stats
    )
    api = await connect(
        deadline_s=config.deadline_s,
        in_cluster=IN_CLUSTER in os.environ,
        kubeconfig=os.environ.get("KUBECONFIG"),
        field_manager=FIELD_MANAGER,
    )
    server = RpcServer([], NoTokens())
    try:
        with private_folder() as folder:
            jobs = ReleaseJobs(
                RunCluster(api, config.namespaces),
                config.helm,
                clock,
                folder=Path(folder),
                on_attempt=partial(_count_helm, stats),
                on_retry=_log_retry,
            )
            operator = OperatorLoop(
                config, api=api, access=access, jobs=jobs, clock=clock, stats=stats, chart=chart
            )
            await server.start(listen)
            await server.set_serving(serving=True)
            await operator.run(drain)
    finally:
        await server.stop(grace_s=STOP_GRACE_S)
        await api.close()
        telemetry.close()
    return exit_codes.DRAINED


def _count_helm(stats: StatsBoard, key: RunKey, verb: str, seconds: float, succeeded: bool) -> None:
    stats.add(statistics.HELM_CALLS)
    stats.add(statistics.HELM_S, seconds)
    if not succeeded:
        stats.add(statistics.HELM_FAILURES)
    structlog.get_logger("operator").info(
        "helm", training_run=str(key), verb=verb, seconds=round(seconds, 1), succeeded=succeeded
    )


def _log_retry(key: RunKey, failed: FailedAttempt) -> None:
    structlog.get_logger("operator").warning(
        "helm_retried",
        training_run=str(key),
        attempt=failed.number,
        pause_s=failed.pause_s,
        error=str(failed.error),
    )
