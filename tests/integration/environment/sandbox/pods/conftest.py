"""A cluster of sandbox pods, and sandboxes on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import NAMESPACE, Reply, SandboxCluster, oblige
from tidegate.environment.sandbox.pods.objects import Owner
from tidegate.environment.sandbox.pods.sandbox import PodsAccess, PodsSandbox
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.settings import PodsIsolation

OPEN_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: fake
clusters: [{{name: fake, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: fake, user: {{token: none}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
"""


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, /, **values: object) -> None:
        self.events.append(event)

    def warning(self, event: str, /, **values: object) -> None:
        self.events.append(event)


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
def make_cluster() -> Iterator[Callable[[Reply | None], SandboxCluster]]:
    with ExitStack() as clusters:

        def make(reply: Reply | None) -> SandboxCluster:
            cluster = SandboxCluster(reply=reply)
            cluster.start()
            clusters.callback(cluster.close)
            return cluster

        yield make


@pytest.fixture
def cluster(make_cluster: Callable[[Reply | None], SandboxCluster]) -> SandboxCluster:
    return make_cluster(oblige)


@pytest.fixture
def open_sandbox(tmp_path: Path, log: Lines) -> Iterator[Callable[..., PodsSandbox]]:
    """Make sandboxes on a cluster, by default with the limits of the port; they are closed afterwards."""
    with ExitStack() as sandboxes:

        def make(
            cluster: SandboxCluster,
            *,
            life: str = "now",
            worker: str = "worker-1",
            limits: SandboxLimits | None = None,
            max_runs: int = 4,
            **settings: object,
        ) -> PodsSandbox:
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_text(OPEN_KUBECONFIG.format(port=cluster.port))
            chosen: dict[str, object] = {"warm": 2, "start_deadline_s": 5.0, "runtime_class": "gvisor"}
            sandbox = PodsSandbox(
                PodsIsolation(namespace=NAMESPACE, **(chosen | settings)),  # pyright: ignore[reportArgumentType]
                limits or SandboxLimits(),
                access=PodsAccess(
                    Owner("t", worker, life), "python", in_cluster=False, kubeconfig=str(kubeconfig)
                ),
                max_runs=max_runs,
                log=log,
            )
            sandboxes.callback(sandbox.close)
            return sandbox

        yield make
