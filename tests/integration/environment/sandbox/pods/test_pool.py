"""Sandbox pods before a fake API server: how many there are, who gets one, what happens when there is none."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox_cluster import PODS, Reply, SandboxCluster, oblige, result
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.environment.sandbox.pods.objects import (
    INSTANCE_LABEL,
    LIFE_LABEL,
    NAME_LABEL,
    SANDBOX,
    WORKER_LABEL,
)
from tidegate.environment.sandbox.pods.sandbox import PodsSandbox
from tidegate.environment.sandbox.port import IsolationUnavailableError, SandboxLimits
from tidegate.environment.sandbox.zygote import frames

pytestmark = pytest.mark.integration
Open = Callable[..., PodsSandbox]
MakeCluster = Callable[[Reply | None], SandboxCluster]
# Programs of the start: the test of the network, and three that try to break out.
STARTED = 4


def printed(sandbox: PodsSandbox, code: str = "print(1)") -> str:
    return sandbox.run_python(code).stdout


def until(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_each_run_has_a_pod_of_its_own_which_is_deleted_and_replaced(
    cluster: SandboxCluster, open_sandbox: Open
) -> None:
    sandbox = open_sandbox(cluster)
    assert [sandbox.run_python("print(1)").stdout for _ in range(6)] == ["ran"] * 6
    used = STARTED + 6
    until(
        lambda: len(cluster.deleted) == used and len(cluster.pods) == 2 and len(cluster.attached) == used + 2
    )
    assert len(set(cluster.deleted)) == used
    assert len({pod["metadata"]["name"] for pod in cluster.created}) == used + 2
    users = [pod["spec"]["containers"][0]["securityContext"]["runAsUser"] for pod in cluster.created]
    assert len(set(users)) == len(users)


def test_no_more_pods_are_kept_than_asked_for(cluster: SandboxCluster, open_sandbox: Open) -> None:
    open_sandbox(cluster, warm=3).start()
    until(lambda: len(cluster.attached) == STARTED + 3)
    time.sleep(0.3)
    assert len(cluster.pods) == 3


def test_close_deletes_every_pod(cluster: SandboxCluster, open_sandbox: Open) -> None:
    sandbox = open_sandbox(cluster)
    sandbox.start()
    sandbox.close()
    assert cluster.pods == {}
    with pytest.raises(UnavailableError, match="closed"):
        sandbox.run_python("print(1)")


def test_runs_beyond_the_warm_pods_wait_for_new_ones(cluster: SandboxCluster, open_sandbox: Open) -> None:
    sandbox = open_sandbox(cluster, warm=1, max_runs=8)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(printed, [sandbox] * 8))
    assert results == ["ran"] * 8


def test_no_more_programs_run_at_once_than_allowed(make_cluster: MakeCluster, open_sandbox: Open) -> None:
    running, most, counting = 0, 0, threading.Lock()

    def slow(head: dict[str, Any], code: str) -> bytes:
        nonlocal running, most
        if code != "slow":
            return oblige(head, code)
        with counting:
            running += 1
            most = max(most, running)
        time.sleep(0.2)
        with counting:
            running -= 1
        return result("slow")

    sandbox = open_sandbox(make_cluster(slow), warm=4, max_runs=2)
    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(printed, [sandbox] * 6, ["slow"] * 6)) == {"slow"}
    assert most == 2


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'pod rejected: RuntimeClass "gvisor" not found'),
        (403, 'pods is forbidden: User "t-environment" cannot create resource "pods"'),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'),
        (404, 'namespaces "sandboxes" not found'),
        (422, "spec.containers[0].image: Invalid value"),
    ],
)
def test_cluster_that_refuses_the_pods_runs_nothing_and_says_why(
    status: int, message: str, cluster: SandboxCluster, open_sandbox: Open
) -> None:
    cluster.refusals["POST", PODS] = (status, message)
    sandbox = open_sandbox(cluster, start_deadline_s=60.0)
    started_s = time.monotonic()
    with pytest.raises(IsolationUnavailableError) as refused:
        sandbox.run_python("print(1)")
    assert message in refused.value.why
    assert "docs/sandbox.md" in refused.value.fix
    assert time.monotonic() - started_s < 30, "no deadline is waited for where waiting does not help"


def test_account_that_may_not_attach_is_refused(cluster: SandboxCluster, open_sandbox: Open) -> None:
    cluster.refusals["GET", "/attach"] = (403, "cannot get pods/attach")
    with pytest.raises(IsolationUnavailableError, match="denies attaching"):
        open_sandbox(cluster).start()
    until(lambda: len(cluster.deleted) == len(cluster.created))


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerError"])
def test_pod_that_does_not_start_in_time_is_named_with_the_clusters_reason(
    reason: str, cluster: SandboxCluster, open_sandbox: Open
) -> None:
    cluster.stuck = reason
    with pytest.raises(UnavailableError, match=reason):
        open_sandbox(cluster, start_deadline_s=1.0).start()
    until(lambda: len(cluster.deleted) >= 1)


def test_full_quota_is_no_lack_of_isolation(cluster: SandboxCluster, open_sandbox: Open) -> None:
    cluster.refusals["POST", PODS] = (403, "pods is forbidden: exceeded quota: pods, requested: pods=1")
    with pytest.raises(UnavailableError, match="exceeds the namespace's quota"):
        open_sandbox(cluster, start_deadline_s=1.0).start()


def test_api_server_that_is_away_can_be_tried_again(cluster: SandboxCluster, open_sandbox: Open) -> None:
    cluster.refusals["POST", PODS] = (503, "away")
    sandbox = open_sandbox(cluster, start_deadline_s=1.0)
    with pytest.raises(UnavailableError, match="No sandbox pod became ready"):
        sandbox.start()
    cluster.refusals.clear()
    until(lambda: len(cluster.attached) == 2)
    assert sandbox.run_python("print(1)").stdout == "ran"


def test_program_that_breaks_out_of_a_pod_ends_it_all(make_cluster: MakeCluster, open_sandbox: Open) -> None:
    def leaking(head: dict[str, Any], code: str) -> bytes:
        return result('["socket"]') if "breaches" in code else oblige(head, code)

    with pytest.raises(IsolationUnavailableError, match="got past: socket"):
        open_sandbox(make_cluster(leaking)).run_python("print(1)")


def test_runner_that_is_not_contained_runs_nothing(make_cluster: MakeCluster, open_sandbox: Open) -> None:
    def as_root(head: dict[str, Any], code: str) -> bytes:
        return frames.packed({"refused": "the container runs as root"}, ())

    with pytest.raises(IsolationUnavailableError, match="as root"):
        open_sandbox(make_cluster(as_root)).start()


@pytest.mark.parametrize(("reached", "warned"), [(True, True), (False, False)])
def test_network_policy_that_is_not_enforced_is_reported(
    make_cluster: MakeCluster, open_sandbox: Open, log: Any, *, reached: bool, warned: bool
) -> None:
    def connected(head: dict[str, Any], code: str) -> bytes:
        return frames.packed({"reached": reached}, ()) if "reach" in head else oblige(head, code)

    open_sandbox(make_cluster(connected)).start()
    assert ("sandbox_network_open" in log.events) is warned


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        frames.packed({"exit_status": "0"}, (b"", b"")),
        frames.packed({}, (b"x" * ((64 << 10) + 1), b"")),
        frames.packed({}, (b"",) * 3),
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x80\x00" + b"[" * (1 << 15),
        b'\x00\x00\x00\x0f{"parts": [-1]}',
    ],
    ids=["size", "types", "part", "parts", "list", "nested", "negative"],
)
def test_answer_of_a_runner_that_was_taken_over_is_refused(
    answer: bytes, make_cluster: MakeCluster, open_sandbox: Open
) -> None:
    sandbox = open_sandbox(make_cluster(lambda head, code: answer if code == "bad" else oblige(head, code)))
    with pytest.raises(UnavailableError):
        sandbox.run_python("bad")
    assert sandbox.run_python("print(1)").stdout == "ran"


def test_container_that_the_kernel_ended_for_its_memory_is_a_limit_of_the_program(
    make_cluster: MakeCluster, open_sandbox: Open
) -> None:
    cluster = make_cluster(lambda head, code: b"lost" if code == "lost" else oblige(head, code))
    cluster.end_reason = "OOMKilled"
    sandbox = open_sandbox(cluster)
    ended = sandbox.run_python("lost")
    assert (ended.limit, ended.exit_status, ended.ok) == ("memory", -signal.SIGKILL, False)
    cluster.end_reason = "Error"
    with pytest.raises(UnavailableError, match="its container ended: Error"):
        sandbox.run_python("lost")


def test_run_is_lost_past_its_deadline(make_cluster: MakeCluster, open_sandbox: Open) -> None:
    cluster = make_cluster(lambda head, code: b"\0" if code == "silent" else oblige(head, code))
    sandbox = open_sandbox(cluster)
    sandbox.start()
    with pytest.raises(UnavailableError, match="deadline passed"):
        sandbox.run_python("silent", limits=SandboxLimits(wall_s=0.1))


def test_run_that_asks_for_more_than_the_pods_have_is_refused(
    cluster: SandboxCluster, open_sandbox: Open
) -> None:
    sandbox = open_sandbox(cluster)
    with pytest.raises(ConfigError, match=r"raise environment\.sandbox\.memory_bytes"):
        sandbox.run_python("print(1)", limits=SandboxLimits(memory_bytes=1 << 40))
    assert not cluster.created


def test_pods_that_a_killed_worker_left_are_deleted_and_those_of_others_kept(
    cluster: SandboxCluster, open_sandbox: Open
) -> None:
    ours = {NAME_LABEL: SANDBOX, INSTANCE_LABEL: "t"}
    old = {**ours, WORKER_LABEL: "worker-3", LIFE_LABEL: "old"}
    cluster.leave_behind("mine", {**ours, WORKER_LABEL: "worker-1", LIFE_LABEL: "before"})
    cluster.leave_behind("other", {**ours, WORKER_LABEL: "worker-2", LIFE_LABEL: "other"})
    cluster.leave_behind("ended", old, phase="Failed", age_s=2000.0)
    cluster.leave_behind("ending", old, phase="Succeeded", age_s=1.0)
    open_sandbox(cluster).start()
    until(lambda: {"mine", "ended"} <= set(cluster.deleted))
    assert {"other", "ending"} <= set(cluster.pods)


def test_runners_of_a_killed_worker_end_and_its_successor_deletes_their_pods(
    cluster: SandboxCluster, open_sandbox: Open, tmp_path: Path
) -> None:
    open_sandbox(cluster)  # writes the kubeconfig
    worker = """
import os, sys, time
from tidegate.environment.sandbox.pods.objects import Owner
from tidegate.environment.sandbox.pods.sandbox import PodsAccess, PodsSandbox
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.settings import PodsIsolation
class Log:
    info = warning = lambda self, event, **values: None
access = PodsAccess(Owner("t", "worker-1", "before"), "python", in_cluster=False, kubeconfig=sys.argv[1])
settings = PodsIsolation(namespace="sandboxes", runtime_class="gvisor", warm=2)
PodsSandbox(settings, SandboxLimits(), access=access, max_runs=2, log=Log()).start()
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", worker, str(tmp_path / "kubeconfig")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        until(lambda: len(cluster.pods) == 2 and len(cluster.attached) == STARTED + 2)
        left = set(cluster.pods)
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: left <= set(cluster.detached))
    assert left <= set(cluster.pods)
    open_sandbox(cluster).start()
    until(lambda: left <= set(cluster.deleted))


def test_ready_pod_that_ends_is_replaced(cluster: SandboxCluster, open_sandbox: Open) -> None:
    sandbox = open_sandbox(cluster)
    sandbox.start()
    until(lambda: len(cluster.attached) == STARTED + 2)
    before = set(cluster.pods)
    cluster.stop()
    assert before
    cluster.start_again()
    until(lambda: len(cluster.pods) == 2 and not before & set(cluster.pods))
    assert sandbox.run_python("print(1)").stdout == "ran"
