"""From a TrainingRun to values, a digest, GPUs and workloads; and what it may not set."""

from typing import Any

import msgspec
import pytest

from tidegate.core.scaling import ScalingConfig
from tidegate.operator.config import FORBIDDEN, OperatorConfig
from tidegate.operator.objects import RELEASE_ANNOTATION, ManagedMeta, ManagedRun, ManagedSpec, RunKey
from tidegate.operator.plans import MAX_REPLICAS, ReleasePlan, merged, plan_of, run_id_of

RUN: dict[str, Any] = {"run": "cartpole", "workload": {"kind": "segments", "env": "CartPole-v1"}}
CONFIG = OperatorConfig()


def managed(name: str = "rl", namespace: str = "space", **spec: Any) -> ManagedRun:
    given: dict[str, Any] = {"run": RUN, **spec}
    return ManagedRun(ManagedMeta(name=name, namespace=namespace), ManagedSpec(**given))


def plan(config: OperatorConfig = CONFIG, *, chart: str = "0.1.0", **spec: Any) -> ReleasePlan:
    return plan_of(managed(**spec), config, chart=chart)


def test_values_of_the_run_go_before_those_of_the_operator_and_what_it_sets_before_both() -> None:
    config = OperatorConfig(values={"images": {"tag": "1", "registry": "r"}, "crd": {"enabled": False}})
    values = plan(config, values={"images": {"tag": "2"}}).values
    assert values["images"] == {"tag": "2", "registry": "r"}
    assert values["run"] == RUN
    assert values["crd"] == {"enabled": True, "create": False}


def test_sections_are_merged_and_everything_else_is_replaced() -> None:
    below = {"a": {"b": 1, "c": [1, 2]}, "d": {"e": 1}}
    assert merged(below, {"a": {"c": [3]}, "d": None}) == {"a": {"b": 1, "c": [3]}, "d": None}
    assert below["a"] == {"b": 1, "c": [1, 2]}


def test_a_run_id_is_one_of_the_cluster_and_the_same_for_a_run_that_is_created_again() -> None:
    assert plan().run_id == plan().values["runId"] == run_id_of(RunKey("space", "rl"))
    ids = {run_id_of(RunKey(*key)) for key in [("a-b", "c"), ("a", "b-c"), ("a", "b")]}
    assert len(ids) == 3
    long = run_id_of(RunKey("n" * 63, "r" * 32))
    assert len(long) <= 48
    assert plan(values={"runId": "mine"}).run_id == "mine"


def test_a_digest_changes_with_run_values_and_volumes_and_with_nothing_else() -> None:
    before = plan().digest
    assert plan(suspend=True, ttl_seconds_after_finished=5).digest == before
    assert plan(OperatorConfig(values={"images": {"tag": "2"}}), chart="0.2.0").digest == before
    changed = {
        plan(run={**RUN, "seed": 2}).digest,
        plan(values={"images": {"tag": "2"}}).digest,
        plan(volume_policy="Delete").digest,
    }
    assert len(changed | {before}) == 4


def test_at_once_a_newer_chart_and_other_values_of_the_operator_are_another_digest() -> None:
    config = OperatorConfig(upgrades="at-once")
    other = msgspec.structs.replace(config, values={"images": {"tag": "2"}})
    digests = {plan(config).digest, plan(config, chart="0.2.0").digest, plan(other).digest}
    assert len(digests) == 3


def test_volumes_are_deleted_with_the_release_only_by_policy() -> None:
    assert "nats" not in plan().values
    deleted = plan(volume_policy="Delete", values={"nats": {"persistence": {"size": "8Gi"}}}).values
    assert deleted["nats"] == {"persistence": {"size": "8Gi", "retain": False}}
    assert deleted["learner"] == {"persistence": {"retain": False}}


@pytest.mark.parametrize(
    ("values", "run", "live", "gpus"),
    [
        ({}, {}, {}, 0),
        ({"learner": {"gpu": 2}}, {}, {}, 2),
        ({"learner": {"gpu": 2, "ranks": 8}}, {}, {}, 8),
        ({"learner": {"gpu": 2}}, {"learner": {"ranks": 4}}, {}, 4),
        ({"learner": {"ranks": 8}}, {}, {}, 0),
        ({"actor": {"gpu": 1}}, {}, {}, 1),
        ({"actor": {"gpu": 1}}, {}, {"rl-actor": 5}, 5),
        ({"actor": {"gpu": 1, "replicas": 3}}, {}, {"rl-actor": 2}, 3),
        ({"actor": {"gpu": 4, "nodes": 2}}, {}, {}, 8),
        ({"actor": {"gpu": 1}, "keda": {"enabled": True, "maxReplicas": 6}}, {}, {}, 6),
        ({"actor": {"gpu": 1}, "hpa": {"enabled": True}}, {}, {}, MAX_REPLICAS),
        ({"actor": {"gpu": 1}}, {"admission": {"scaling": {"mode": "controller", "max_replicas": 9}}}, {}, 9),
        ({"actor": {"gpu": 1}}, {"admission": {"scaling": {"mode": "advise", "max_replicas": 9}}}, {}, 1),
        ({"actor": {"gpu": 1, "pools": {"spot": {"replicas": 2}}}}, {}, {"rl-actor-spot": 3}, 4),
        ({"actor": {"gpu": 1, "pools": {"big": {"gpu": 8}}}, "learner": {"gpu": 1}}, {}, {}, 10),
        ({"actor": {"gpu": "many"}, "learner": []}, {}, {}, 0),
    ],
)
def test_gpus_are_those_that_the_run_may_take_at_the_most(
    values: dict[str, Any], run: dict[str, Any], live: dict[str, int], gpus: int
) -> None:
    assert plan(values=values, run={**RUN, **run}).gpus(live) == gpus


def test_maximum_without_one_in_the_run_file_is_the_run_files_own() -> None:
    assert ScalingConfig().max_replicas == MAX_REPLICAS


def test_what_is_scaled_to_0_is_what_the_chart_makes_for_actors_and_learner() -> None:
    kinds = [(each.kind, each.name, each.is_last) for each in plan().scaled]
    assert kinds == [("Deployment", "rl-actor", False), ("StatefulSet", "rl-learner", True)]
    groups = plan(values={"learner": {"kind": "JobSet"}, "actor": {"nodes": 2, "pools": {"spot": {}}}})
    assert [(each.kind, each.name) for each in groups.scaled] == [
        ("LeaderWorkerSet", "rl-actor"),
        ("LeaderWorkerSet", "rl-actor-spot"),
        ("JobSet", "rl-learner"),
    ]


def test_without_access_of_admission_to_the_cluster_it_reads_no_training_run() -> None:
    alone = plan(values={"admission": {"kubernetes": {"enabled": False}}})
    assert not alone.reads_run
    assert alone.values["crd"] == {"enabled": False, "create": False}
    assert plan().reads_run


@pytest.mark.parametrize(
    "values",
    [
        {"extraObjects": [{"kind": "ClusterRoleBinding"}]},
        {"crd": {"enabled": False}},
        {"fullnameOverride": "other"},
        {"priorityClasses": {"create": True}},
        {"admission": {"kubernetes": {"rankActors": True}}},
        {"admission": {"replicas": 2}},
        {"rules": {"enabled": True, "scope": "cluster"}},
        {"model": {"nodeCache": "/var/models"}},
        {"actor": {"pools": {"spot": {"hostNetwork": True}}}},
        {"podDefaults": {"securityContext": {"privileged": True}}},
        {"nats": {"podSecurityContext": {}}},
        {"learner": {"extraVolumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        {"podDefaults": {"initContainers": []}},
        {"environment": {"serviceAccountAnnotations": {"role": "admin"}}},
    ],
    ids=str,
)
def test_keys_that_reach_beyond_the_pods_of_the_run_are_refused(values: dict[str, Any]) -> None:
    found = plan(values=values)
    assert "reaches beyond the pods of the run" in found.problem
    assert found.values == {}


def test_a_learner_whose_runtime_is_an_object_of_the_cluster_is_refused() -> None:
    assert "Set it to JobSet" in plan(values={"learner": {"kind": "TrainJob"}}).problem


def test_other_values_of_such_keys_are_not_refused() -> None:
    assert plan(values={"rules": {"scope": "release"}, "learner": {"kind": "JobSet"}}).problem == ""


def test_an_isolation_in_another_namespace_is_refused_in_the_run_file_too() -> None:
    run = {**RUN, "environment": {"isolation": {"kind": "pods", "namespace": "other"}}}
    assert "run.environment.isolation" in plan(run=run).problem


def test_the_configuration_allows_single_keys() -> None:
    config = OperatorConfig(allowed=["extraObjects"])
    assert plan(config, values={"extraObjects": []}).problem == ""
    assert "crd" in plan(config, values={"crd": {}}).problem
    assert set(config.forbidden) == set(FORBIDDEN) - {"extraObjects"}


def test_the_run_file_has_one_place() -> None:
    assert "spec.run is" in plan(values={"run": {}}).problem


@pytest.mark.parametrize("name", ["0rl", "a.b", "r" * 33, "Rl", "rl-"])
def test_names_that_no_service_can_have_are_refused(name: str) -> None:
    assert "Choose another one" in plan(name=name).problem


@pytest.mark.parametrize("name", ["r", "rl", "r" * 32, "a-1"])
def test_other_names_are_not(name: str) -> None:
    assert plan(name=name).problem == ""


def test_a_training_run_of_a_release_is_not_taken_over() -> None:
    run = managed()
    meta = msgspec.structs.replace(run.metadata, annotations={RELEASE_ANNOTATION: "rl"})
    problem = plan_of(ManagedRun(meta, run.spec), CONFIG, chart="0.1.0").problem
    assert "is an object of the Helm release rl" in problem
    # One that a chart of the user's own brings is a TrainingRun like any other.
    meta = msgspec.structs.replace(run.metadata, annotations={RELEASE_ANNOTATION: "my-runs"})
    assert plan_of(ManagedRun(meta, run.spec), CONFIG, chart="0.1.0").problem == ""
