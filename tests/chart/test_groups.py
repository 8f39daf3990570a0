"""Workloads of other controllers: a learner as a JobSet or TrainJob, an actor as a LeaderWorkerSet, Kueue's queue.

``definitions`` has the specs of their CRDs, without descriptions and without what pods and claims are made of, which
Kubernetes' own schemas check here. Rules in CEL are not checked.
"""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.chart.rendering import (
    CRD_APIS,
    Manifest,
    as_pod,
    component,
    containers,
    environment,
    named,
    needs_helm,
    of_kind,
    refusal,
    render,
)
from tests.chart.test_versions import MINORS, problems
from tidegate.launch.cluster import JOB_VARIABLE
from tidegate.learner.ranks.membership import membership, pod_ranks

pytestmark = [pytest.mark.chart, needs_helm]

DEFINITIONS = sorted((Path(__file__).parent / "definitions").glob("*.json"))
QUEUE = "kueue.x-k8s.io/queue-name"
JOB_SET = {"learner.kind": "JobSet", "learner.gpu": 8}
TRAIN_JOB = {"learner.kind": "TrainJob", "learner.gpu": 8}
RUNTIME = "ClusterTrainingRuntime"
SHARED = {"learner.persistence.accessModes": ["ReadWriteMany"]}
WORKER = {
    "name": "server",
    "image": "registry.example/vllm:1",
    "args": ["--headless", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"],
    "resources": {"limits": {"nvidia.com/gpu": 8}},
}
GROUP: dict[str, Any] = {
    "actor.nodes": 2,
    "actor.workerContainers": [WORKER],
    "actor.extraContainers": [{**WORKER, "args": ["--node-rank", "0"]}],
    "run.actor": {"engine": "vllm", "server": {"url": "http://127.0.0.1:8000", "update_dir": "/shared"}},
    "admission.kubernetes.enabled": False,
}


def closed(schema: Any) -> Any:
    """A schema in which unknown fields are errors, as `kubectl --validate=strict` has them."""
    if not isinstance(schema, dict):
        return schema
    node: dict[str, Any] = {**schema}
    if "properties" in node:
        node["properties"] = {name: closed(each) for name, each in node["properties"].items()}
        node["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            node[key] = closed(node[key])
    if node.pop("x-kubernetes-int-or-string", False):
        node = {"type": ["integer", "string"]}
    return node


@functools.cache
def definition(kind: str) -> Manifest:
    (found,) = (each for each in map(read, DEFINITIONS) if each["kind"] == kind)
    return found


def read(path: Path) -> Manifest:
    return json.loads(path.read_text(encoding="utf-8"))


def errors(thing: Manifest) -> list[str]:
    """What its definition, and the definitions of its pods and claims, have against an object."""
    known = definition(thing["kind"])
    assert thing["apiVersion"] == known["apiVersion"]
    validator: Any = jsonschema.Draft202012Validator(closed(known["schema"]))
    found = [f"{each.json_path}: {each.message}" for each in validator.iter_errors(thing)]
    pods = [as_pod(template, thing["metadata"]["name"]) for template in templates(thing)]
    return found + [problem for pod in pods for minor in MINORS for problem in problems(pod, minor)]


def templates(thing: Manifest) -> list[Manifest]:
    """Its pod templates."""
    if thing["kind"] == "JobSet":
        return [each["template"]["spec"]["template"] for each in thing["spec"]["replicatedJobs"]]
    if thing["kind"] == RUNTIME:
        return [
            each["template"]["spec"]["template"]
            for each in thing["spec"]["template"]["spec"]["replicatedJobs"]
        ]
    if thing["kind"] == "TrainJob":
        return []
    group = thing["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def job_set(values: dict[str, Any] | None = None) -> Manifest:
    return named(render(values={**JOB_SET, **(values or {})}), "JobSet", "t-learner")


def group(values: dict[str, Any] | None = None) -> Manifest:
    return named(render(values={**GROUP, **(values or {})}), "LeaderWorkerSet", "t-actor")


def train_job(values: dict[str, Any] | None = None) -> tuple[Manifest, Manifest]:
    """The runtime, and the TrainJob."""
    objects = render(values={**TRAIN_JOB, **(values or {})})
    return named(objects, RUNTIME, "space-t-learner"), named(objects, "TrainJob", "t-learner")


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_definition_names_repository_version_and_licence(path: Path) -> None:
    known = read(path)
    assert (known["license"], known["source"].count("/")) == ("Apache-2.0", 1)
    assert known["version"].startswith("v")
    assert known["apiVersion"] in CRD_APIS


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"learner.ranks": 24, **SHARED},
        {"learner.suspend": True, "kueue.queueName": "team"},
        {"learner.persistence.enabled": False, "learner.ranks": 16},
    ],
    ids=str,
)
def test_job_set_and_train_job_are_valid(values: dict[str, Any]) -> None:
    assert errors(job_set(values)) == []
    assert [problem for thing in train_job(values) for problem in errors(thing)] == []


@pytest.mark.parametrize("values", [{}, {"actor.replicas": 3, "kueue.queueName": "team"}], ids=str)
def test_leader_worker_set_is_valid(values: dict[str, Any]) -> None:
    assert errors(group(values)) == []


def test_unknown_fields_and_wrong_types_are_found() -> None:
    wrong = job_set()
    wrong["spec"]["suspended"] = True
    wrong["spec"]["replicatedJobs"][0]["replicas"] = "one"
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMod"] = "Indexed"
    assert len(errors(wrong)) == 3
    group_of_none = group()
    group_of_none["spec"]["leaderWorkerTemplate"]["restartPolicy"] = "Never"
    assert len(errors(group_of_none)) == 1


def test_job_set_has_the_ranks_of_a_stateful_set_and_they_find_the_first() -> None:
    spec = job_set({"learner.ranks": 24, **SHARED})["spec"]
    (ranks,) = spec["replicatedJobs"]
    job = ranks["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 3, 3)
    variables = environment(as_pod(job["template"], "learner"))
    assert variables["MASTER_ADDR"] == f"t-learner-{ranks['name']}-0-0.{spec['network']['subdomain']}"
    # As Kubernetes numbers the pods of an indexed Job.
    third = {name: value for name, value in variables.items() if isinstance(value, str)}
    third |= {"TIDEGATE_POD_NAME": "t-learner-rank-0-2-x7abc", "JOB_COMPLETION_INDEX": "2"}
    pod = pod_ranks(third)
    assert pod is not None
    assert (pod.first, pod.in_pod, pod.count) == (16, 8, 24)
    joined = membership({**third, "RANK": "16", "LOCAL_RANK": "0"})
    assert joined is not None
    assert joined.rank == 16


def test_train_job_makes_the_job_set_that_the_chart_would_make() -> None:
    values = {"learner.ranks": 24, "kueue.queueName": "team", **SHARED}
    runtime, job = train_job(values)
    assert job["spec"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": RUNTIME,
            "name": runtime["metadata"]["name"],
        }
    }
    assert job["metadata"]["labels"][QUEUE] == "team"
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 3}
    own, made = job_set(values)["spec"], runtime["spec"]["template"]["spec"]
    (rank,), (node,) = own.pop("replicatedJobs"), made.pop("replicatedJobs")
    assert own == made
    # Kubeflow's tools look for these names, and Trainer refuses a training step without such a container.
    assert (rank.pop("name"), node.pop("name")) == ("rank", "node")
    assert node["template"].pop("metadata") == {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    ranks, nodes = (each["template"]["spec"]["template"] for each in (rank, node))
    variables = environment(as_pod(nodes, "learner"))
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-node-0-0.t-learner-ranks"
    text = json.dumps(rank).replace("-rank-0-0", "-node-0-0")
    assert [each["name"] for each in nodes["spec"]["containers"]] == ["node"]
    nodes["spec"]["containers"][0]["name"] = "learner"
    nodes["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "learner"
    assert json.loads(text) == node
    assert ranks["spec"]["restartPolicy"] == "OnFailure"


def test_runtime_exists_before_the_train_job_that_trainer_would_refuse_without_it() -> None:
    runtime, job = train_job()
    # Helm's order of kinds that it does not know.
    assert runtime["kind"] < job["kind"]


@pytest.mark.parametrize("values", [JOB_SET, TRAIN_JOB], ids=["job set", "train job"])
def test_service_of_the_learner_reaches_the_rank_that_serves_and_no_stateful_set_is_left(
    values: dict[str, Any],
) -> None:
    objects = render(values=values)
    selector = named(objects, "Service", "t-learner")["spec"]["selector"]
    assert selector["batch.kubernetes.io/job-completion-index"] == "0"
    assert "statefulset.kubernetes.io/pod-name" not in selector
    assert named(objects, "Service", "t-learner-ranks")
    assert "t-learner" not in {each["metadata"]["name"] for each in of_kind(objects, "StatefulSet")}


def test_rank_that_fails_starts_again_in_its_pod_and_not_for_ever() -> None:
    spec = job_set({"learner.restartsMax": 7})["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert (job["backoffLimit"], spec["failurePolicy"]["maxRestarts"]) == (7, 7)


def test_checkpoints_are_on_a_claim_that_stays_and_each_pod_has_its_own_folder() -> None:
    objects = render(values={**JOB_SET, **SHARED, "learner.ranks": 16})
    claim = named(objects, "PersistentVolumeClaim", "t-learner-data")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    pod = as_pod(templates(named(objects, "JobSet", "t-learner"))[0], "learner")
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "data")
    assert volume["persistentVolumeClaim"] == {"claimName": "t-learner-data"}
    (mount,) = (each for each in containers(pod)[0]["volumeMounts"] if each["name"] == "data")
    assert mount["subPathExpr"] == "pod-$(TIDEGATE_POD_INDEX)"
    assert "TIDEGATE_POD_INDEX" in environment(pod)
    assert JOB_VARIABLE in environment(pod), "a pod that is evicted would finish its Job"
    passing = render(values={**JOB_SET, "learner.persistence.retain": False})
    assert "annotations" not in named(passing, "PersistentVolumeClaim", "t-learner-data")["metadata"]


def test_suspend_is_kueues_and_a_persons_unless_it_is_asked_for() -> None:
    assert "suspend" not in job_set({"kueue.queueName": "team"})["spec"], "an upgrade would undo Kueue's"
    assert job_set({"learner.suspend": True})["spec"]["suspend"] is True
    assert job_set({"learner.suspend": False})["spec"]["suspend"] is False
    runtime, job = train_job({"learner.suspend": True})
    assert job["spec"]["suspend"] is True
    assert "suspend" not in runtime["spec"]["template"]["spec"], "the TrainJob's is passed on"


@pytest.mark.parametrize(
    "values", [{}, JOB_SET, TRAIN_JOB, GROUP], ids=["own", "job set", "train job", "group"]
)
def test_queue_admits_whole_workloads_and_no_pod_of_a_group_twice(values: dict[str, Any]) -> None:
    objects = render(values={**values, "kueue.queueName": "team"})
    queued = {
        (each["kind"], component(each)) for each in objects if each["metadata"].get("labels", {}).get(QUEUE)
    }
    assert {service for _, service in queued} == {"actor", "learner"}
    for thing in of_kind(objects, "JobSet", RUNTIME, "LeaderWorkerSet"):
        for template in templates(thing):
            assert QUEUE not in template["metadata"]["labels"]


def test_leader_of_a_group_is_the_actor_and_the_others_are_the_servers_nodes() -> None:
    spec = group()["spec"]
    leader, worker = templates(group())
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert "replicas" not in spec, "kubectl scale sets it"
    assert [each["name"] for each in leader["spec"]["containers"]] == ["actor", "server"]
    assert worker["spec"]["containers"] == [WORKER]
    assert worker["spec"]["securityContext"] == leader["spec"]["securityContext"]
    assert {each["name"] for each in worker["spec"]["volumes"]} >= {"shm", "data", "tmp"}
    labels = [each["metadata"]["labels"]["app.kubernetes.io/component"] for each in (leader, worker)]
    assert labels == ["actor", "actor-worker"], "workers are no actors for Services and disruption budgets"


def test_nodes_of_a_group_reach_each_other_and_nothing_else() -> None:
    policies = {each["metadata"]["name"]: each for each in of_kind(render(values=GROUP), "NetworkPolicy")}
    policy = policies["t-actor-group"]["spec"]
    among = [{"podSelector": policy["podSelector"]}]
    assert policy["ingress"] == [{"from": among}]
    assert policy["egress"] == [{"to": among}]
    (expression,) = policy["podSelector"]["matchExpressions"]
    assert expression["values"] == ["actor", "actor-worker"]
    loaded = {**GROUP, "model.url": "https://hub/it", "model.claim": "hub", "run.policy.path": "/models/base"}
    policy = named(render(values=loaded), "NetworkPolicy", "t-actor-group")["spec"]
    assert policy["egress"] == [{"to": among}, {"ports": [{"port": 443}]}]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({**JOB_SET, "learner.ranks": 16}, "learner.kind is JobSet with 2 pods, which share one volume"),
        ({**TRAIN_JOB, "learner.ranks": 16}, "learner.kind is TrainJob with 2 pods, which share one volume"),
        ({"learner.suspend": True}, "learner.suspend is set and learner.kind StatefulSet"),
        ({**GROUP, "actor.workerContainers": []}, "actor.nodes is 2 and actor.workerContainers empty"),
        (
            {**GROUP, "run.actor.server.python": "/vllm/bin/python"},
            "run.actor.server.python set: the actor starts",
        ),
        ({**GROUP, "run.actor.server.update_dir": ""}, "run.actor.server.update_dir empty"),
        ({**GROUP, "actor.pools.spot": {}}, "actor.pools set: pools are Deployments"),
        ({**GROUP, "admission.kubernetes.enabled": True}, "they read and scale a Deployment"),
        ({"actor.workerContainers": [WORKER]}, "actor.workerContainers is set and actor.nodes 1"),
    ],
)
def test_groups_that_cannot_work_are_refused_with_what_to_change(
    values: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(values, apis=CRD_APIS)


@pytest.mark.parametrize(
    ("values", "api"),
    [
        (JOB_SET, "jobset.x-k8s.io"),
        (TRAIN_JOB, "trainer.kubeflow.org"),
        (GROUP, "leaderworkerset.x-k8s.io"),
    ],
)
def test_missing_controller_is_named(values: dict[str, Any], api: str) -> None:
    told = refusal(values)
    assert f"this cluster has no {api}" in told
    assert f"--api-versions {api}" in told
