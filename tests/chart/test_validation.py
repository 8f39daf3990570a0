"""Values that are right one by one and wrong together: refused by the templates with what to change."""

import json
import re
from typing import Any

import pytest

from tests.chart.rendering import (
    CHART,
    CRD_APIS,
    ROOT,
    helm_arguments,
    needs_helm,
    refusal,
    render,
    run,
    run_values,
)
from tidegate.core.errors import ConfigError
from tidegate.core.ids import RunId
from tidegate.core.scaling import ScalingConfig
from tidegate.core.targets import parse_target
from tidegate.wire.subjects import MIB, Topology

pytestmark = [pytest.mark.chart, needs_helm]

KEDA = {
    "keda.enabled": True,
    "run.admission.scaling.mode": "external",
    "networkPolicy.scalerFrom": {"name": "keda"},
}
HPA = {"hpa.enabled": True, "hpa.metrics": [{"type": "Resource"}]}
CONTROLLER = {"run.admission.scaling.mode": "controller"}
# Sum of the streams' limits, for the messages.
STREAMS_MIB = sum(stream.max_bytes for stream in Topology(RunId("any")).streams(max_tasks=1)) // MIB

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "more copies than servers": (
        {"nats.streamCopies": 3},
        "nats.streamCopies is 3 and nats.replicas 1: each copy is on a server of its own. Set nats.replicas to 3",
    ),
    "file store above the volume": (
        {"nats.fileStoreMax": "50Gi"},
        "nats.fileStoreMax is 50Gi on a volume of 10Gi (nats.persistence.size)",
    ),
    "file store below the streams": (
        {"nats.fileStoreMax": f"{STREAMS_MIB - 1}Mi"},
        f"the streams of a run need {STREAMS_MIB} MiB on each server",
    ),
    "batch above what may run": (
        {"run.batch_size": 8, "run.max_running": 6},
        "run.batch_size is 8 and run.max_running 6: a batch would be admitted in several rounds",
    ),
    "target that cannot be read": ({"run.until": "garbage"}, 'run.until is "garbage": it must be statistics'),
    "backups on the disk of a pod": (
        {"run.backup": {"to": "file:///data/backups"}},
        "run.backup is file:///data/backups, a folder of one pod, which is lost with it. Name a bucket: s3://",
    ),
    "credentials of no bucket": (
        {"backup.existingSecret": "bucket"},
        "backup.existingSecret is set without run.backup and restore.from: nothing would use the credentials.",
    ),
    "replicas without an address": (
        {"run.postgres": {}},
        "run.postgres is set and postgres.existingSecret is not: no pod would know the address.",
    ),
    "an address without replicas": (
        {"postgres.existingSecret": "database"},
        "postgres.existingSecret is set without run.postgres: nothing would be replicated.",
    ),
    "restore of no certain backup": (
        {"restore.from": "s3://bucket/runs"},
        "restore.from is set and restore.number is not: all volumes must be of one backup",
    ),
    "restore from nowhere": (
        {"restore.number": 3},
        "restore.number is set without restore.from: set the place of the backups",
    ),
    "restore from a pod's disk": (
        {"restore": {"from": "file:///data", "number": 3}},
        "restore.from is file:///data, which pods cannot read. Name the bucket of the backups",
    ),
    "restore into a volume that does not last": (
        {"restore": {"from": "s3://bucket/runs", "number": 3}, "learner.persistence.enabled": False},
        "restore.from is set and learner.persistence.enabled false: each new pod would begin at the backup again",
    ),
    "restore of a volume that several pods share": (
        {
            "restore": {"from": "s3://bucket/runs", "number": 3},
            "learner": {"kind": "JobSet", "ranks": 2, "persistence": {"accessModes": ["ReadWriteMany"]}},
        },
        "restore.from is set and the learner is a JobSet of several pods, which share a volume that cannot be filled",
    ),
    "backups that a restart forgets": (
        {"run.backup": "s3://bucket/runs", "admission.persistence.enabled": False},
        "run.backup is set and admission.persistence.enabled false: which backup is the newest would be forgotten",
    ),
    "trackers without the page": (
        {"run.track": ["mlflow"]},
        "run.track is set and ui.enabled false: what it names runs beside the page",
    ),
    "a webhook that no pod posts to": (
        {"run.notify": {"url": "https://example.org/hook"}},
        "run.notify is set, and pods post no notices: they are of `tidegate up` on one machine. Use the alert rules",
    ),
    "callbacks without the page": (
        {"run.callbacks": ["my_callbacks.py:Notify"]},
        "run.callbacks is set and ui.enabled false: what it names runs beside the page",
    ),
    "KEDA without a number to follow": (
        {"keda.enabled": True},
        "keda.enabled and run.admission.scaling.mode observe: admission would give KEDA no number",
    ),
    "KEDA and the controller": (
        {**KEDA, **CONTROLLER},
        "keda.enabled and run.admission.scaling.mode controller: two scalers of the same actors",
    ),
    "HPA and the controller": (
        {**HPA, **CONTROLLER},
        "hpa.enabled and run.admission.scaling.mode controller: two scalers of the same actors",
    ),
    "KEDA and HPA": ({**KEDA, **HPA}, "two autoscalers would undo each other's work"),
    "KEDA's bounds": (
        {**KEDA, "keda.minReplicas": 17},
        "keda.minReplicas is 17 and keda.maxReplicas 16: swap them",
    ),
    "HPA's bounds": (
        {**HPA, "hpa.minReplicas": 17},
        "hpa.minReplicas is 17 and hpa.maxReplicas 16: swap them",
    ),
    "admission's bounds": (
        {"run.admission.scaling.min_replicas": 17},
        "run.admission.scaling: min_replicas 17 is above max_replicas 16: swap them",
    ),
    "autoscaler of a fixed number": ({**KEDA, "actor.replicas": 2}, "actor.replicas is set: every upgrade"),
    "controller of a fixed number": (
        {**CONTROLLER, "actor.replicas": 2},
        "actor.replicas is set and run.admission.scaling.mode is controller: every upgrade would undo",
    ),
    "GPUs of a kind and none of them": (
        {"learner.gpuKind": "H100-80"},
        "learner.gpuKind is H100-80 and learner.gpu 0: its pods get no GPU. Set learner.gpu",
    ),
    "RDMA without GPUs": (
        {"learner.rdma.resource": "rdma/hca"},
        "learner.rdma.resource is rdma/hca and learner.gpu 0: only pods with GPUs exchange tensors over it",
    ),
    "a server in an image without one": (
        {"run.actor": {"engine": "vllm", "server": {"python": "/vllm/bin/python"}}},
        "is /vllm/bin/python and the image of the actors light, which has no vLLM. Set actor.gpu",
    ),
    "ranks on parts of a GPU": (
        {"learner.gpu": 2, "learner.gpuResource": "nvidia.com/mig-3g.40gb"},
        "learner.gpu is 2 and learner.gpuResource nvidia.com/mig-3g.40gb: parts of a GPU exchange no tensors",
    ),
    "a collector that no Prometheus reaches": (
        {"collector.mode": "builtin", "metrics.serviceMonitor.enabled": True},
        "metrics.serviceMonitor.enabled and networkPolicy.metricsFrom empty: no Prometheus could reach",
    ),
    "an admission that KEDA does not reach": (
        {**KEDA, "networkPolicy.scalerFrom": {}},
        "keda.enabled and networkPolicy.scalerFrom empty: KEDA could not ask admission",
    ),
    "a receiver of telemetry that nothing uses": (
        {"collector.endpoint": "otel:4317"},
        "collector.endpoint is otel:4317 and collector.mode none, which does not use it",
    ),
    "a trace store that nothing sends to": (
        {"collector.tracesEndpoint": "tempo:4317"},
        "collector.tracesEndpoint is tempo:4317 and collector.mode none: only the built-in collector",
    ),
    "a broker that nothing uses": (
        {"nats.url": "nats://mine:4222"},
        "nats.url is nats://mine:4222 and nats.mode builtin: it is of a broker of your own",
    ),
    "one user of a broker with a user for each service": (
        {"nats.auth.user": "rl"},
        "nats.auth.user is rl and nats.mode builtin: it is of a broker of your own",
    ),
    "controller without a cluster": (
        {**CONTROLLER, "admission.kubernetes.enabled": False},
        "mode is controller and admission.kubernetes.enabled false: admission could not scale the actors",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_combination_that_cannot_work_is_refused_with_what_to_change(case: str) -> None:
    values, sentence = WRONG[case]
    assert sentence in refusal(values, apis=CRD_APIS)


def test_all_problems_are_told_at_once() -> None:
    told = refusal({"nats.streamCopies": 3, "run.until": "garbage", **CONTROLLER, "actor.replicas": 1})
    assert [part in told for part in ("nats.streamCopies", "run.until", "actor.replicas")] == [True] * 3


@pytest.mark.parametrize(
    "values",
    [
        KEDA,
        {"nats.replicas": 3},
        {"nats.replicas": 3, "nats.streamCopies": 1, "nats.fileStoreMax": "2Gi"},
        {"nats.fileStoreMax": f"{STREAMS_MIB}Mi"},
        {"nats.fileStoreMax": "10Gi"},
        {"nats.persistence.size": 9 * 1024 * MIB},
        {"run.admission.scaling.min_replicas": 0},
        CONTROLLER,
        {"run.batch_size": 6},
        {**KEDA, "networkPolicy": {"enabled": False}},
    ],
    ids=json.dumps,
)
def test_neighbour_that_can_work_is_accepted(values: dict[str, Any]) -> None:
    assert render(values=values)


@pytest.mark.parametrize("release", ["7b-grpo", "big.run"])
def test_release_whose_services_could_not_be_named_so_is_refused(release: str) -> None:
    done = run("helm", "template", *helm_arguments(release=release))
    assert f"the release is named {release}, and so would Services be" in done.stderr
    assert f"Set fullnameOverride, such as run-{release.replace('.', '-')}" in done.stderr


def test_units_of_replay_may_be_more_than_what_runs() -> None:
    assert render(values=run_values(ROOT / "runs" / "apex.yaml"))


@pytest.mark.parametrize(
    "target",
    [
        "",
        "mean_return>=475",
        " version_step >= 200 and  mean_return>=-1.5e-2 ",
        "solved_share>.9",
        "mean_return",
        "mean_return>=",
        "mean_return==4",
        "a>=1 and",
        "a>=1 or b<2",
        "Mean>=1",
    ],
)
def test_template_reads_a_target_as_the_command_line_does(target: str) -> None:
    values = {"run.until": target}
    try:
        parse_target(target)
    except ConfigError:
        assert "run.until is" in refusal(values)
    else:
        assert render(values=values)


def test_numbers_in_the_templates_are_those_of_the_types() -> None:
    text = (CHART / "templates" / "_validate.tpl").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"mul (\d+) 1048576", text)] == [STREAMS_MIB]
    scaling = ScalingConfig()
    low = re.search(r'ternary \$scaling.min_replicas (\d+) \(hasKey \$scaling "min_replicas"\)', text)
    high = re.search(r'ternary \$scaling.max_replicas (\d+) \(hasKey \$scaling "max_replicas"\)', text)
    assert low is not None
    assert high is not None
    assert (int(low[1]), int(high[1])) == (scaling.min_replicas, scaling.max_replicas)
