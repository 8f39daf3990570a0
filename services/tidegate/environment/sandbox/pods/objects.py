"""Sandbox pods as values: what is sent to create one, what is read of one, which ones were left behind."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidegate.environment.sandbox.pods.runner_source import command
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.self_test import MEMORY_BYTES, SCRATCH_BYTES
from tidegate.environment.sandbox.settings import PodsIsolation

CONTAINER = "program"
NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
WORKER_LABEL, LIFE_LABEL = "tidegate.dev/sandbox-worker", "tidegate.dev/sandbox-life"
SANDBOX = "tidegate-sandbox"
SCRATCH = "/tmp"
# The runner, and what the kernel holds for the container.
_OWN_MEMORY_BYTES = 64 << 20
# What the node keeps of a container's output, twice: the runner writes the program's output as its answer.
_LOG_BYTES = 8 << 20
# Requested of the scheduler: a warm pod uses no CPU.
_CPU_REQUEST = "50m"
# Each pod has a user of its own, so that the kernel's limit on a user's processes counts those of one pod.
USER_IDS = (1 << 20, 1 << 30)


class Owner(msgspec.Struct, frozen=True):
    """Whose pods these are. ``worker``: the environment worker's pod; ``life``: of one process of it."""

    release: str
    worker: str
    life: str

    def labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return {
            NAME_LABEL: SANDBOX,
            INSTANCE_LABEL: label_value(self.release),
            WORKER_LABEL: label_value(self.worker),
            LIFE_LABEL: self.life,
        }

    def selector(self) -> str:
        """The pods of the whole release."""
        return f"{NAME_LABEL}={SANDBOX},{INSTANCE_LABEL}={label_value(self.release)}"


class PodLimits(msgspec.Struct, frozen=True):
    """What a pod is made for: no run in it may ask for more."""

    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    wall_s: float


def pod_limits(limits: SandboxLimits) -> PodLimits:
    """Room for runs within ``limits``, and for the self-test."""
    return PodLimits(
        memory_bytes=max(limits.memory_bytes, MEMORY_BYTES),
        scratch_bytes=max(limits.scratch_bytes, SCRATCH_BYTES),
        output_bytes=max(limits.output_bytes, SandboxLimits().output_bytes),
        wall_s=limits.wall_s,
    )


def label_value(text: str) -> str:
    """``text`` as a label's value, from its end, where names of pods differ."""
    return re.sub(r"[^-_.A-Za-z0-9]", "-", text)[-63:].strip("-_.")


def manifest(
    name: str, owner: Owner, settings: PodsIsolation, limits: PodLimits, *, image: str, user_id: int
) -> dict[str, Any]:
    """The pod to create, as PodSecurity "restricted" admits it."""
    memory_bytes = limits.memory_bytes + limits.scratch_bytes + _OWN_MEMORY_BYTES
    disk_bytes = _LOG_BYTES + 4 * limits.output_bytes
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(settings.lifetime_s + limits.wall_s + settings.start_deadline_s),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        # No resolver either, beside the network policy.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "hostname": "sandbox",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(command()),
                # The same on each node: a program prints the same each time it runs.
                "env": [{"name": "PYTHONHASHSEED", "value": "0"}],
                "workingDir": "/",
                "stdin": True,
                "stdinOnce": True,
                "resources": {
                    "requests": {
                        "cpu": _CPU_REQUEST,
                        "memory": memory_bytes,
                        "ephemeral-storage": disk_bytes,
                    },
                    "limits": {
                        "cpu": str(settings.cpus),
                        "memory": memory_bytes,
                        "ephemeral-storage": disk_bytes,
                    },
                },
                "securityContext": {
                    "runAsUser": user_id,
                    "runAsGroup": user_id,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "scratch", "mountPath": SCRATCH},
                    # In its place the runtime would put a folder in memory that every user may fill.
                    {"name": "empty", "mountPath": "/dev/shm", "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": limits.scratch_bytes}},
            {"name": "empty", "emptyDir": {"medium": "Memory", "sizeLimit": 4096}},
        ],
    }
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": owner.labels()},
        "spec": spec,
    }


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    """How a container ended; ``reason`` is OOMKilled where the kernel enforced its memory limit."""

    reason: str = ""
    exit_code: int = 0
    message: str = ""


class Waiting(msgspec.Struct, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True):
    """At most one of them is set, or it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    """The container's part of a pod's status."""

    state: ContainerState = ContainerState()


class Condition(msgspec.Struct, frozen=True):
    """``PodScheduled`` says why no node takes a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a pod that the cluster writes."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class PodMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a pod."""

    name: str
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class SandboxPod(msgspec.Struct, frozen=True):
    """The fields of a pod that are read."""

    metadata: PodMeta
    status: PodStatus = PodStatus()

    def is_running(self) -> bool:
        """Whether its runner runs."""
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    def has_ended(self) -> bool:
        """Whether nothing of it runs any more, or soon nothing will."""
        return self.status.phase in ("Failed", "Succeeded") or self.metadata.deletion_timestamp is not None

    def terminated(self) -> Terminated | None:
        """How its container ended."""
        return next((each.state.terminated for each in self.status.container_statuses), None)

    def delay(self) -> str:
        """Why it does not run yet, or no more, in the cluster's words; empty where the cluster says nothing."""
        parts = [self.status.reason, self.status.message]
        for each in self.status.conditions:
            if each.type == "PodScheduled" and each.status == "False":
                parts += [each.reason, each.message]
        for container in self.status.container_statuses:
            state = container.state.waiting or container.state.terminated
            if state is not None:
                parts += [state.reason, state.message]
        return ": ".join(part for part in parts if part)


def left_behind(
    pods: Sequence[SandboxPod], owner: Owner, *, now: datetime, lifetime_s: float
) -> list[SandboxPod]:
    """The pods of a release that no worker will delete.

    Those of earlier processes in this worker's pod at once. Those of other workers once they ended and are older than
    any living one may be: the cluster has ended them by their deadline.
    """
    mine = label_value(owner.worker)
    found: list[SandboxPod] = []
    for pod in pods:
        labels, made = pod.metadata.labels, pod.metadata.creation_timestamp
        if pod.metadata.deletion_timestamp is not None or labels.get(LIFE_LABEL) == owner.life:
            continue
        old = made is not None and (now - made.astimezone(UTC)).total_seconds() > lifetime_s
        if labels.get(WORKER_LABEL) == mine or (pod.has_ended() and old):
            found.append(pod)
    return found
