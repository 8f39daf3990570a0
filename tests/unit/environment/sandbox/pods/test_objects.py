"""Sandbox pods as values: what PodSecurity "restricted" asks for, limits, names, and what was left behind."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tidegate.core.errors import ConfigError
from tidegate.environment.sandbox.pods.objects import (
    LIFE_LABEL,
    WORKER_LABEL,
    Owner,
    PodMeta,
    PodStatus,
    SandboxPod,
    label_value,
    left_behind,
    manifest,
    pod_limits,
)
from tidegate.environment.sandbox.pods.sandbox import access_from
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.self_test import MEMORY_BYTES
from tidegate.environment.sandbox.settings import PodsIsolation

OWNER = Owner("t", "t-environment-7f-abc", "now")
SETTINGS = PodsIsolation(namespace="sandboxes", runtime_class="gvisor", cpus=2.0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def made(limits: SandboxLimits, settings: PodsIsolation = SETTINGS) -> dict[str, Any]:
    return manifest("p", OWNER, settings, pod_limits(limits), image="python", user_id=2_000_000)


def test_pod_is_restricted_and_has_neither_token_nor_resolver() -> None:
    spec = made(SandboxLimits())["spec"]
    (container,) = spec["containers"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert (spec["dnsPolicy"], spec["restartPolicy"]) == ("None", "Never")
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "runAsUser": 2_000_000,
        "runAsGroup": 2_000_000,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
    assert "runtimeClassName" not in made(SandboxLimits(), replace(SETTINGS, runtime_class=""))["spec"]


def test_resources_follow_the_limits_of_a_run() -> None:
    limits = SandboxLimits(memory_bytes=1 << 30, scratch_bytes=8 << 20, wall_s=30.0)
    spec = made(limits)["spec"]
    resources = spec["containers"][0]["resources"]
    assert resources["limits"]["memory"] == (1 << 30) + (8 << 20) + (64 << 20)
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert resources["limits"]["cpu"] == "2.0"
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": 8 << 20}
    assert spec["activeDeadlineSeconds"] == 900 + 30 + 60
    small = made(SandboxLimits(memory_bytes=64 << 20))["spec"]["containers"][0]["resources"]["limits"]
    assert small["memory"] >= MEMORY_BYTES, "the self-test needs as much"


def test_names_fit_into_labels() -> None:
    assert label_value("x" * 80) == "x" * 63
    assert label_value("-t/environment:1-") == "t-environment-1"


@pytest.mark.parametrize(
    ("worker", "life", "phase", "age_s", "deleting", "left"),
    [
        (OWNER.worker, "before", "Running", 1.0, False, True),
        (OWNER.worker, "now", "Failed", 9999.0, False, False),
        (OWNER.worker, "before", "Running", 1.0, True, False),
        ("other", "other", "Running", 9999.0, False, False),
        ("other", "other", "Failed", 9999.0, False, True),
        ("other", "other", "Succeeded", 1.0, False, False),
    ],
)
def test_pods_that_nobody_will_delete_are_left_behind(
    worker: str, life: str, phase: str, age_s: float, *, deleting: bool, left: bool
) -> None:
    meta = PodMeta(
        "p",
        {WORKER_LABEL: worker, LIFE_LABEL: life},
        NOW - timedelta(seconds=age_s),
        NOW if deleting else None,
    )
    pod = SandboxPod(meta, PodStatus(phase=phase))
    assert bool(left_behind([pod], OWNER, now=NOW, lifetime_s=1000.0)) is left


def test_sandbox_pods_never_share_the_namespace_of_the_run() -> None:
    with pytest.raises(ConfigError, match="may read its Secrets"):
        access_from(SETTINGS, {"TIDEGATE_NAMESPACE": "sandboxes", "TIDEGATE_SANDBOX_IMAGE": "x"}.get)


def test_image_is_the_charts_unless_the_run_file_names_one() -> None:
    assert access_from(SETTINGS, {"TIDEGATE_SANDBOX_IMAGE": "own"}.get).image == "own"
    assert access_from(replace(SETTINGS, image="mine"), {"TIDEGATE_SANDBOX_IMAGE": "own"}.get).image == "mine"
    with pytest.raises(ConfigError, match="names no image"):
        access_from(SETTINGS, dict[str, str]().get)
