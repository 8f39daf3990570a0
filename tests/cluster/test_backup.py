"""Backups of a run in a cluster to an S3 server, and its restore into new volumes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CommandError, Namespace, balanced_audit, until
from tests.cluster.servers import IMAGE_OF_S3, S3_PORT, S3_USER, start_s3

PLACE = "s3://runs/backups"
BACKUP = {"to": PLACE, "every_s": 10.0, "keep": 20}
RUN_ID = "cartpole-backup"
SECRET = {**S3_USER, "AWS_ENDPOINT_URL": f"http://s3:{S3_PORT}"}

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IMAGE_OF_S3, reason="TIDEGATE_E2E_S3_IMAGE names no image of an S3 server"),
]


@pytest.fixture(scope="module")
def bucket(namespace: str) -> None:
    """An S3 server in the namespace, with a bucket, and the Secret with its credentials."""
    start_s3(Namespace(namespace, "s3"), secret={"bucket": SECRET})


def install_backed_up(release: Namespace, values: Path, *more: str, run_id: str = RUN_ID) -> None:
    settings = f"runId={run_id},backup.existingSecret=bucket,backup.port={S3_PORT}"
    install(release, values, "--set", settings, *more)


def newest(release: Namespace, pod: str = "") -> dict[str, Any]:
    """What the container has noted of the newest backup; nothing before the first look at its place."""
    pod = pod or f"{release.release}-admission-0"
    noted = ("sh", "-c", "cat /data/backup.json || echo {}")
    return json.loads(release.kubectl("exec", pod, "--container", "admission", "--", *noted))


def test_run_goes_on_from_a_backup_that_was_made_between_deaths(
    bucket: None, namespace: str, tmp_path: Path, figures: dict[str, object]
) -> None:
    release = Namespace(namespace, "b")
    values = cartpole_values(tmp_path, backup=BACKUP)
    install_backed_up(release, values)
    until("two backups", lambda: newest(release).get("number", 0) >= 2, timeout_s=300)
    owners = [f"b-{name}-0" for name in ("learner", "trajectory-store", "task-queue")]
    release.kubectl("delete", "pod", *owners, "--force", "--grace-period=0")
    before = newest(release)["number"]
    figures["backup_after_deaths_s"] = until(
        "two more backups", lambda: newest(release)["number"] >= before + 2, timeout_s=300
    )
    backup = newest(release)
    assert release.audit()["balanced"]
    release.helm("uninstall", "--wait")
    release.kubectl("delete", "pvc", "--all")

    restore = ("--set", f"restore.from={PLACE}", "--set", f"restore.number={backup['number']}")
    install_backed_up(release, values, *restore)
    start = int(backup["version"].rpartition("@")[2])
    assert release.status()["values"]["version_step"] >= start > 0
    figures["trains_on_after_restore_s"] = until(
        "it trains on", lambda: release.status()["values"]["version_step"] >= start + 20, timeout_s=300
    )
    balanced_audit(release)

    # A volume that is lost later is not filled with what is older than the others.
    claim = "data-b-trajectory-store-0"
    release.kubectl("delete", "pvc", claim, "--wait=false")
    release.kubectl("delete", "pod", "b-trajectory-store-0")
    until("the pod is refused", lambda: "tasks of the run" in _why_refused(release), timeout_s=180)


def test_learner_that_lost_its_volume_goes_on_from_the_newest_backup(
    bucket: None, namespace: str, tmp_path: Path, figures: dict[str, object]
) -> None:
    release = Namespace(namespace, "v")
    install_backed_up(release, cartpole_values(tmp_path, backup=BACKUP), run_id="cartpole-lost")
    until("two backups", lambda: newest(release).get("number", 0) >= 2, timeout_s=300)
    kept = int(newest(release)["version"].rpartition("@")[2])
    assert kept > 0
    claim = "data-v-learner-0"
    before = release.get("pvc", claim)["metadata"]["uid"]
    lost_at_s = time.time()
    release.kubectl("delete", "pvc", claim, "--wait=false")
    release.kubectl("delete", "pod", "v-learner-0", "--force", "--grace-period=0")
    until("a new volume", lambda: release.get("pvc", claim)["metadata"]["uid"] != before, timeout_s=180)
    until("updates after the loss", lambda: len(_steps_since(release, lost_at_s)) >= 5, timeout_s=300)
    first = _steps_since(release, lost_at_s)[0]
    figures["first_update_after_the_loss_s"] = round(first["at_s"] - lost_at_s, 1)
    assert first["lineage"].startswith("1-")  # as after a crash
    assert first["step"] > kept
    balanced_audit(release)


def test_admission_pod_that_takes_over_goes_on_with_the_backups(
    bucket: None, namespace: str, tmp_path: Path, figures: dict[str, object]
) -> None:
    release = Namespace(namespace, "p")
    settings = ("--set", "admission.replicas=2")
    install_backed_up(release, cartpole_values(tmp_path, backup=BACKUP), *settings, run_id="cartpole-pods")
    until("two backups", lambda: newest_number(release) >= 2, timeout_s=300)
    for how, arguments in (("by_force", ("--force", "--grace-period=0")), ("deleted", ())):
        leader = release.leader()
        before = newest_number(release)
        release.kubectl("delete", "pod", leader, *arguments)
        figures[f"two_backups_after_leader_{how}_s"] = until(
            "two more backups", lambda before=before: newest_number(release) >= before + 2, timeout_s=300
        )
        until("both pods are ready", lambda: len(release.ready("admission")) == 2, timeout_s=180)
        problems = {pod: newest(release, pod).get("problem", "") for pod in release.ready("admission")}
        figures[f"problems_after_leader_{how}"] = problems
        assert not problems[release.leader()], problems
    balanced_audit(release)


def newest_number(release: Namespace) -> int:
    """Of the newest backup that a ready pod of admission made."""
    return max((newest(release, pod).get("number", 0) for pod in release.ready("admission")), default=0)


def _steps_since(release: Namespace, since_s: float) -> list[dict[str, Any]]:
    lines = release.kubectl(
        *("exec", f"{release.release}-learner-0", "--", "tail", "-n", "400", "/data/learner/steps.jsonl")
    )
    steps = [json.loads(line) for line in lines.splitlines()]
    return [step for step in steps if step["at_s"] > since_s]


def _why_refused(release: Namespace) -> str:
    try:
        pod = release.get("pod", "b-trajectory-store-0")
    except CommandError:
        return ""
    states = [
        each.get("lastState", {}) | each["state"] for each in pod["status"].get("initContainerStatuses", [])
    ]
    return " ".join(state.get("terminated", {}).get("message", "") for state in states)
