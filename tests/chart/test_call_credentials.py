"""Each pod has the call credential of its own service and no other; a Job makes and rotates them."""

from typing import Any

import pytest

from tests.chart.rendering import (
    EVERYTHING,
    WITH_INFERENCE,
    Manifest,
    component,
    containers,
    named,
    needs_helm,
    of_kind,
    pods,
    render,
)
from tidegate.launch.cluster import TASK_SECRET_VARIABLE
from tidegate.launch.operator_credential import FOLDER_DEFAULT
from tidegate.launch.services import SERVICES
from tidegate.runtime.call_credentials import DIGESTS_FILE, token_file
from tidegate.runtime.task_secret import TASKS_FILE
from tidegate.wire.call_permissions import Role

pytestmark = [pytest.mark.chart, needs_helm]

ALL: dict[str, Any] = {**EVERYTHING, **WITH_INFERENCE}
# Who signs tasks, and who verifies what was made of them.
SIGNED_BY_AND_FOR = ("task_queue", "trajectory_store")
OPERATORS: dict[str, list[Role]] = {"admission": ["operator"], "test": ["operator"]}


def mounted(pod: Manifest) -> dict[str, str]:
    """Files of the Secret of call credentials in a pod, by their key; none where it is not mounted."""
    for volume in pod["spec"].get("volumes", ()):
        if volume["name"] == "credentials":
            return {item["key"]: item["path"] for item in volume["secret"]["items"]}
    return {}


def test_pod_holds_its_own_token_and_only_operators_pods_hold_theirs() -> None:
    found = {component(pod): mounted(pod) for _, pod in pods(render(values=ALL))}
    for service in SERVICES:
        name = service.replace("_", "-")
        roles = [service, *OPERATORS.get(name, [])]
        files = [DIGESTS_FILE, *(f"{role}.token" for role in roles)]
        if service in SIGNED_BY_AND_FOR:
            files.append(TASKS_FILE)
        assert found.pop(name) == {file: file for file in files}
    assert found.pop("test") == {file: file for file in (DIGESTS_FILE, token_file("operator"))}
    assert found.pop("ui") == {file: file for file in (DIGESTS_FILE, token_file("ui"))}
    assert set(found) == {"check", "nats", "collector", "credentials", "streams"}
    assert not any(found.values())


def test_queue_and_store_alone_are_told_where_the_secret_of_tasks_is() -> None:
    for _, pod in pods(render(values=ALL)):
        told = [
            variable["value"]
            for container in containers(pod)
            for variable in container.get("env", ())
            if variable["name"] == TASK_SECRET_VARIABLE
        ]
        signs = component(pod).replace("-", "_") in SIGNED_BY_AND_FOR
        assert told == ([f"{FOLDER_DEFAULT}/{TASKS_FILE}"] if signs else [])


def test_credentials_are_where_services_look_for_them() -> None:
    for _, pod in pods(render(values=ALL)):
        if mounted(pod):
            (mount,) = [
                each
                for container in containers(pod)
                for each in container["volumeMounts"]
                if each["name"] == "credentials"
            ]
            # Not by subPath: the kubelet writes a rotated Secret into the pod.
            assert mount == {"name": "credentials", "mountPath": FOLDER_DEFAULT, "readOnly": True}


def job_of(objects: list[Manifest]) -> Manifest:
    (job,) = credentials_jobs(objects)
    return job


def credentials_jobs(objects: list[Manifest]) -> list[Manifest]:
    return [job for job in of_kind(objects, "Job") if "credentials" in job["metadata"]["name"]]


def test_tokens_are_made_by_the_job_and_never_rendered() -> None:
    objects = render()
    assert "data" not in named(objects, "Secret", "t-call-auth")
    arguments = containers(job_of(objects)["spec"]["template"])[0]["args"]
    assert arguments[-2:] == ["--call-secret=t-call-auth", "--rotation="]


def test_rotation_is_another_job_and_restarts_no_pod() -> None:
    before, after = render(), render(values={"calls.rotation": "2026-11"})
    assert job_of(before)["metadata"]["name"] != job_of(after)["metadata"]["name"]
    assert containers(job_of(after)["spec"]["template"])[0]["args"][-1] == "--rotation=2026-11"
    kinds = ("StatefulSet", "Deployment")
    assert of_kind(before, *kinds) == of_kind(after, *kinds)


def test_own_secret_replaces_the_jobs_part() -> None:
    objects = render(values={"calls.existingSecret": "mine"})
    assert not [each for each in of_kind(objects, "Secret") if each["metadata"]["name"] == "t-call-auth"]
    assert not [each for each in containers(job_of(objects)["spec"]["template"])[0]["args"] if "call" in each]
    (volume,) = [
        each
        for _, pod in pods(objects)
        if component(pod) == "learner"
        for each in pod["spec"]["volumes"]
        if each["name"] == "credentials"
    ]
    assert volume["secret"]["secretName"] == "mine"
    own = render(values={"calls.existingSecret": "a", "nats.auth.existingSecret": "b"})
    assert not credentials_jobs(own)


def test_external_broker_leaves_the_job_the_tokens_alone() -> None:
    values = {"nats.mode": "external", "nats.url": "nats://n:4222", "nats.auth.existingSecret": "b"}
    arguments = containers(job_of(render(values=values))["spec"]["template"])[0]["args"]
    assert arguments == ["credentials", "--call-secret=t-call-auth", "--rotation="]
