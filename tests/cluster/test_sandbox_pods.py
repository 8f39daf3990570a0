"""Model-written code in pods of a real cluster: the verifier `code`, with an account that has the chart's Role only."""

import base64
import json
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.cluster.kube import run, until
from tidegate.environment.sandbox.pods import rbac
from tidegate.environment.sandbox.pods.objects import Owner
from tidegate.environment.sandbox.pods.sandbox import PodsAccess, PodsSandbox
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.settings import PodsIsolation
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.code import CodeVerifier
from tidegate.environment.verifiers.settings import CodeSettings

pytestmark = pytest.mark.cluster
# Empty: the nodes' own runtime.
RUNTIME_CLASS = os.environ.get("TIDEGATE_E2E_RUNTIME_CLASS", "")
IMAGE = os.environ.get("TIDEGATE_E2E_SANDBOX_IMAGE", "docker.io/library/python:3.11-slim-bookworm")
LIMITS = SandboxLimits(memory_bytes=128 << 20, cpu_s=2.0, wall_s=10.0)
CASES = [{"arguments": [1, 2], "result": 3}, {"arguments": [20, 22], "result": 42}]
PROBLEM = Problem("add", "Write add(a, b).", json.dumps({"function": "add", "cases": CASES}), "easy")
ACCOUNT = "t-environment"
NUM_RUNS = 12
WARM = 4


class Quiet:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, /, **values: object) -> None:
        self.lines.append(f"{event} {values}")

    warning = info


@pytest.fixture(scope="module")
def space() -> Iterator[str]:
    """A namespace that enforces "restricted", with an account that may what the chart's Role allows."""
    name = f"sandbox-{uuid.uuid4().hex[:6]}"
    metadata = {"name": ACCOUNT, "namespace": name}
    api = "rbac.authorization.k8s.io"
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{api}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": json.loads(msgspec.json.encode(rbac.rules())),
        },
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]
    run("kubectl", "create", "--filename", "-", given=yaml.safe_dump_all(objects))
    yield name
    run("kubectl", "delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def sandbox(space: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodsSandbox]:
    config = json.loads(run("kubectl", "config", "view", "--raw", "--minify", "--output", "json"))
    cluster = config["clusters"][0]["cluster"]
    authority = cluster.pop("certificate-authority", None)
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(Path(authority).read_bytes()).decode()
    token = run("kubectl", "--namespace", space, "create", "token", ACCOUNT).strip()
    own = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "own",
        "clusters": [{"name": "own", "cluster": cluster}],
        "users": [{"name": "own", "user": {"token": token}}],
        "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
    }
    kubeconfig = tmp_path_factory.mktemp("access") / "kubeconfig"
    kubeconfig.write_text(json.dumps(own))
    settings = PodsIsolation(
        namespace=space, runtime_class=RUNTIME_CLASS, image=IMAGE, warm=WARM, start_deadline_s=180.0
    )
    access = PodsAccess(
        Owner("t", "worker", uuid.uuid4().hex[:8]), IMAGE, in_cluster=False, kubeconfig=str(kubeconfig)
    )
    sandbox = PodsSandbox(settings, LIMITS, access=access, max_runs=WARM, log=Quiet())
    yield sandbox
    sandbox.close()


async def test_verifier_rewards_right_programs_only(sandbox: PodsSandbox) -> None:
    verifier = CodeVerifier(CodeSettings(), isolated=lambda: _started(sandbox), limits=LIMITS)
    await verifier.start()
    for program, reward in (
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return a - b", 0.0),
        ("import os\ndef add(a, b):\n    os.write(1, b'2 passed\\n')\n    os._exit(0)", 0.0),
        ("def add(a, b):\n    while True: pass", 0.0),
    ):
        score = await verifier.score(PROBLEM, f"```python\n{program}\n```")
        assert score.reward == reward, (program, score.log)
    await verifier.close()


def _started(sandbox: PodsSandbox) -> PodsSandbox:
    sandbox.start()
    return sandbox


def test_runs_and_replacements_are_measured(
    sandbox: PodsSandbox, space: str, figures: dict[str, object]
) -> None:
    sandbox.start()

    def num_running() -> int:
        found = json.loads(run("kubectl", "--namespace", space, "get", "pods", "--output", "json"))["items"]
        return sum(
            pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            for pod in found
        )

    warm_ms: list[float] = []
    for _ in range(5):
        until("the pods are warm", lambda: num_running() == WARM, timeout_s=120)
        time.sleep(2.0)
        started_s = time.monotonic()
        assert sandbox.run_python("print(6 * 7)").stdout == "42\n"
        warm_ms.append((time.monotonic() - started_s) * 1000)
    started_s = time.monotonic()
    with ThreadPoolExecutor(WARM) as threads:
        results = list(threads.map(sandbox.run_python, ["print(6 * 7)"] * NUM_RUNS))
    rate = NUM_RUNS / (time.monotonic() - started_s)
    assert all(result.stdout == "42\n" for result in results)
    figures |= {
        "warm_run_ms": sorted(warm_ms),
        "warm_run_ms_median": statistics.median(warm_ms),
        "runs_per_s": rate,
    }
    figures["pod_replaced_s"] = WARM / rate


def test_close_leaves_no_pod_behind(sandbox: PodsSandbox, space: str) -> None:
    sandbox.close()
    until(
        "the pods are gone",
        lambda: (
            not json.loads(run("kubectl", "--namespace", space, "get", "pods", "--output", "json"))["items"]
        ),
        timeout_s=120,
    )
