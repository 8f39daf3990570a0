"""Which pods a change of the values replaces: those of the services that read what changed when they start."""

import re
from typing import Any

import pytest

from tests.chart.rendering import (
    ROOT,
    SERVICES,
    WITH_INFERENCE,
    component,
    named,
    needs_helm,
    pods,
    render,
)
from tidegate.launch.run_plan import RunFile
from tidegate.launch.services import SERVICES as ALL_SERVICES

pytestmark = [pytest.mark.chart, needs_helm]

PACKAGES = ROOT / "services" / "tidegate"
# What running services take over (runtime/live_settings.py).
LIVE: list[dict[str, Any]] = [
    {"run.staleness.max_lag": 1},
    {"run.staleness.max_age_s": 60},
    {"run.staleness.pacing": True},
    {"run.slos.lag_p95.bound": 2},
    {"run.admission.scaling.max_replicas": 3},
]
# What some services read at their start, and which.
READ: list[tuple[dict[str, Any], set[str]]] = [
    ({"run.learner.checkpoint_every_steps": 7}, {"learner"}),
    ({"run.actor.engine": "vector_env"}, {"actor"}),
    ({"run.trajectory_store.lease_timeout_s": 77}, {"trajectory-store"}),
    ({"run.admission.tick_s": 2}, {"admission"}),
    ({"run.policy.hidden": [32]}, {"actor", "learner"}),
    ({"run.response.graded": True}, {"learner", "admission"}),
    ({"run.backup": "s3://bucket/runs"}, {"admission"}),
    ({"run.postgres": {}, "postgres.existingSecret": "database"}, {"task-queue", "trajectory-store"}),
    ({"run.long_tail.cap_quantile": 0.9}, {"actor", "environment"}),
    ({"run.batch_size": 3}, {"task-queue", "trajectory-store", "learner", "admission"}),
    ({"run.seed": 3}, {"task-queue", "actor", "environment", "trajectory-store", "learner"}),
    ({"run.workload.unroll_length": 16}, set(SERVICES) - {"weight-distribution"}),
    ({"run.max_running": 8}, set(SERVICES)),
    ({"run.drain_timeout_s": 12}, set(SERVICES)),
    ({"run.telemetry.stats_period_s": 1}, set(SERVICES)),
]


def checksums(values: dict[str, Any]) -> dict[str, str]:
    own = {component(pod): pod for _, pod in pods(render(values=values))}
    return {
        name: own[name]["metadata"]["annotations"]["checksum/config"]
        for name in (*SERVICES, "inference")
        if name in own
    }


def replaced(values: dict[str, Any], *, before: dict[str, Any] | None = None) -> set[str]:
    old, new = checksums(before or {}), checksums((before or {}) | values)
    return {name for name in old if old[name] != new[name]}


@pytest.mark.parametrize("values", LIVE, ids=[next(iter(values)) for values in LIVE])
def test_what_running_services_take_over_replaces_no_pod_and_reaches_their_file(
    values: dict[str, Any],
) -> None:
    assert replaced(values) == set()
    documents = [
        named(render(values=each), "ConfigMap", "t-run")["data"]["run.yaml"] for each in ({}, values)
    ]
    assert documents[0] != documents[1]


@pytest.mark.parametrize(("values", "services"), READ, ids=[next(iter(values)) for values, _ in READ])
def test_a_change_replaces_the_pods_of_the_services_that_read_it(
    values: dict[str, Any], services: set[str]
) -> None:
    assert replaced(values) == services


def test_what_is_no_part_of_the_run_replaces_by_its_own_field_alone() -> None:
    assert replaced({"actor.resources.requests.cpu": "1"}) == set()


def test_inference_is_replaced_by_what_it_reads() -> None:
    assert replaced({"run.inference.threads": 2}, before=WITH_INFERENCE) == {"inference"}
    assert "inference" in replaced({"run.policy.hidden": [32]}, before=WITH_INFERENCE)


def readers_in_code(key: str) -> set[str]:
    """The services whose packages name the shared setting; all of them where their common runtime does."""
    named_in = re.compile(rf"settings\.{key}\b")
    found = {
        path.relative_to(PACKAGES).parts[0]
        for path in PACKAGES.rglob("*.py")
        if named_in.search(path.read_text(encoding="utf-8"))
    }
    return found & set(ALL_SERVICES)


def test_the_charts_table_of_readers_names_every_service_whose_code_reads_a_section() -> None:
    table = (ROOT / "helm/tidegate/templates/_helpers.tpl").read_text(encoding="utf-8")
    block = table.split('define "tidegate.readers"')[1].split("end -}}")[0]
    readers = {
        key: {name.strip() for name in names.split(",")}
        for key, names in re.findall(r"^([a-z_]+): \[(.*)\]$", block, flags=re.MULTILINE)
    }
    assert set(readers) <= set(RunFile.__struct_fields__)
    for key, services in readers.items():
        assert readers_in_code(key) <= services, key
