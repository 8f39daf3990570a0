"""Access to a cluster as an operator has it: kubectl and helm, their answers as Python values."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "tidegate"
CALL_TIMEOUT_S = 120.0
POLL_S = 0.5


class CommandError(Exception):
    """A command of kubectl or helm that failed, with its output."""


def why_no_cluster() -> str:
    """The missing requirement for tests on a cluster; empty if none is missing.

    A KUBECONFIG alone is no leave to install things into its cluster: `make e2e` gives it, and so does CI.
    """
    if not os.environ.get("KUBECONFIG"):
        return "no cluster to test on: KUBECONFIG is not set"
    if not (os.environ.get("TIDEGATE_CLUSTER_TESTS") or os.environ.get("CI")):
        return "not tested on the cluster of KUBECONFIG: `make e2e` does that"
    missing = [program for program in ("kubectl", "helm") if shutil.which(program) is None]
    return f"no cluster to test on: {' and '.join(missing)} not on the PATH" if missing else ""


def run(*command: str, timeout_s: float = CALL_TIMEOUT_S, given: str = "") -> str:
    """Run a command to its end; returns its standard output.

    Raises:
        CommandError: it failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, input=given, check=False
    )
    if done.returncode != 0:
        raise CommandError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Namespace:
    """One namespace and the release ``name`` in it."""

    namespace: str
    release: str

    def kubectl(self, *arguments: str, timeout_s: float = CALL_TIMEOUT_S, given: str = "") -> str:
        """Run kubectl in the namespace."""
        return run("kubectl", "--namespace", self.namespace, *arguments, timeout_s=timeout_s, given=given)

    def helm(self, verb: str, *arguments: str, timeout_s: float = 900.0) -> str:
        """Run a verb of helm on the release."""
        return run("helm", verb, self.release, *arguments, "--namespace", self.namespace, timeout_s=timeout_s)

    def get(self, kind: str, name: str = "") -> Any:
        """An object, or the items of a kind."""
        found = json.loads(self.kubectl("get", kind, *([name] if name else []), "--output", "json"))
        return found if name else found["items"]

    def pods(self, component: str = "") -> list[Any]:
        """Pods of the release that are not on their way out, of one component or of all."""
        labels = f"app.kubernetes.io/instance={self.release}"
        if component:
            labels += f",app.kubernetes.io/component={component}"
        found = json.loads(self.kubectl("get", "pods", "--selector", labels, "--output", "json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, component: str = "") -> list[str]:
        """Names of the pods that are ready."""
        return [
            pod["metadata"]["name"]
            for pod in self.pods(component)
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions", [])
            )
        ]

    @contextmanager
    def unremovable(self, pod: str) -> Generator[None]:
        """Keep the object of a pod that is deleted meanwhile, as where its node does not answer any more."""
        patch = ("patch", "pod", pod, "--type=merge", "--patch")
        self.kubectl(*patch, '{"metadata": {"finalizers": ["tidegate.dev/lost-node"]}}')
        try:
            yield
        finally:
            self.kubectl(*patch, '{"metadata": {"finalizers": null}}')

    def restarts(self, pod: str) -> int:
        """Of the first container of a pod."""
        return int(self.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])

    def workload(self, component: str) -> str:
        """What has the pods of a component, as kubectl names it."""
        kind = "deployment" if component in ("actor", "environment") else "statefulset"
        return f"{kind}/{self.release}-{component}"

    def leader(self) -> str:
        """The pod of admission that holds the Lease; empty while none does."""
        lease = self.get("lease", f"{self.release}-admission-leader")
        return str(lease["spec"].get("holderIdentity", ""))

    def tidegate(self, *arguments: str, component: str = "admission", timeout_s: float = 300.0) -> str:
        """Run `tidegate` inside of a pod of the release, as NOTES.txt describes."""
        return self.kubectl(
            "exec", self.workload(component), "--", "tidegate", *arguments, timeout_s=timeout_s
        )

    def status(self) -> Any:
        """``tidegate status --json``."""
        return json.loads(self.tidegate("status", "--json"))

    def audit(self) -> Any:
        """``tidegate audit --json``, balanced or not."""
        where = f"statefulset/{self.release}-admission"
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, "exec", where, "--", "tidegate", "audit", "--json"],
            capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False,
        )  # fmt: skip
        return json.loads(done.stdout)


def balanced_audit(release: Namespace) -> Any:
    """The audit, of which every entry is as promised."""
    audit = release.audit()
    assert audit["balanced"], audit["problems"]
    assert (audit["trained_twice"], audit["over_budget"]) == (0, 0), audit
    return audit


def updates(release: Namespace) -> float:
    """Updates of the learner so far."""
    return float(release.status()["values"]["version_step"])


def trains(release: Namespace, *, more: int, timeout_s: float) -> float:
    """Seconds until the learner has made this many more updates.

    A restored learner counts from its checkpoint, which may be older than the last observation.
    """
    start: list[float] = []

    def grew() -> bool:
        now = updates(release)
        if not start or now < start[0]:
            start[:] = [now]
        return now >= start[0] + more

    return until(f"{more} more updates", grew, timeout_s=timeout_s)


def until(what: str, holds: Callable[[], bool], *, timeout_s: float) -> float:
    """Poll until a condition holds; returns the seconds it took.

    A command that fails meanwhile, or an answer that lacks what is looked for, does not hold.

    Raises:
        AssertionError: it did not hold in time.
    """
    started_s = time.monotonic()
    last = ""
    while time.monotonic() - started_s < timeout_s:
        try:
            if holds():
                return time.monotonic() - started_s
            last = "it does not hold"
        except (CommandError, subprocess.TimeoutExpired, json.JSONDecodeError, KeyError) as error:
            last = repr(error)
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s:g} s; last: {last[-2000:]}")
