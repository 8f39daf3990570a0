"""Presets for language models on GPUs: what their pods ask for is what the plan says, and it fits."""

from typing import Any

import msgspec
import pytest
import yaml

from tests.chart.rendering import Manifest, containers, environment, named, needs_helm, own_pods, render
from tidegate.cli.check import room_of
from tidegate.core.sizing.learner_room import does_not_fit_room
from tidegate.core.sizing.plan import GpuPlan
from tidegate.core.sizing.versions import checkpoint_s
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tools import chart_presets
from tools.chart_presets import GENERATED, SPOT_NOTICE_S

pytestmark = [pytest.mark.chart, needs_helm]

GIB = 1 << 30


@pytest.fixture(params=GENERATED)
def preset(request: pytest.FixtureRequest) -> str:
    return request.param


def plan_of(preset: str) -> GpuPlan:
    return GENERATED[preset].planned()


def run_of(preset: str) -> RunPlan:
    text = named(render(preset), "ConfigMap", "t-run")["data"]["run.yaml"]
    return parse_plan(yaml.safe_load(text), source="run.yaml")


def gib(quantity: str) -> float:
    assert quantity.endswith("Gi"), quantity
    return float(quantity.removesuffix("Gi"))


def shm_gib(pod: Manifest) -> float:
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    return gib(volume["emptyDir"]["sizeLimit"])


def memory_gib(pod: Manifest) -> float:
    resources = containers(pod)[0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"], "others may not take it away"
    return gib(resources["limits"]["memory"])


def gpus(pod: Manifest) -> int:
    return containers(pod)[0]["resources"]["limits"]["nvidia.com/gpu"]


def test_presets_are_those_of_the_plan(preset: str) -> None:
    path = chart_presets.PRESETS / f"{preset}.yaml"
    assert path.read_text(encoding="utf-8") == chart_presets.text(preset), "run `make chart`"


def test_run_trains_the_model_that_was_planned(preset: str) -> None:
    training, file = plan_of(preset).request.training, run_of(preset).file
    learner = run_of(preset).services["learner"]
    assert file.policy.lora.rank == training.lora_rank
    assert file.policy.context_length == training.length > file.workload.sampler.max_new_tokens
    assert (file.policy.dtype, learner.pass_tokens) == ("bfloat16", training.pass_tokens)


def test_learner_has_a_process_for_each_of_its_gpus_and_every_gpu_is_used(preset: str) -> None:
    split = plan_of(preset).split
    objects = render(preset)
    learner, actor = own_pods(objects)["learner"], own_pods(objects)["actor"]
    pods = named(objects, "StatefulSet", "t-learner")["spec"]["replicas"]
    variables = environment(learner)
    assert variables["TIDEGATE_RANKS_IN_POD"] == str(gpus(learner))
    assert int(variables.get("WORLD_SIZE", gpus(learner))) == pods * gpus(learner) == split.learner_gpus
    assert gpus(actor) == split.tensor_parallel
    used = split.learner_gpus + gpus(actor) * split.num_actors
    assert used + split.idle == plan_of(preset).request.gpus.count
    text = (chart_presets.PRESETS / f"{preset}.yaml").read_text(encoding="utf-8")
    assert f"deployment/<release>-actor --replicas={split.num_actors}\n" in text


def test_memory_of_a_pod_holds_the_plan_and_its_shared_memory(preset: str) -> None:
    answer, pods = plan_of(preset), own_pods(render(preset))
    for service, needed in (("learner", answer.learner_host), ("actor", answer.actor_host)):
        pod = pods[service]
        room = (memory_gib(pod) - shm_gib(pod)) * GIB
        assert needed * 1.05 < room < needed * 1.1 + 20e9, service
        assert shm_gib(pod) >= gpus(pod), "1 GiB a process"


def test_volumes_hold_what_the_run_keeps(preset: str) -> None:
    answer, plan, objects = plan_of(preset), run_of(preset), render(preset)
    assert plan.services["learner"].keep_checkpoints == answer.request.keep_checkpoints
    assert plan.services["weight_distribution"].keep_versions == answer.request.keep_versions
    for name, needed in (
        ("t-learner", answer.disk.checkpoints),
        ("t-weight-distribution", answer.disk.versions),
    ):
        (claim,) = named(objects, "StatefulSet", name)["spec"]["volumeClaimTemplates"]
        assert gib(claim["spec"]["resources"]["requests"]["storage"]) * GIB > needed * 1.05
    actor = own_pods(objects)["actor"]
    (data,) = (each for each in actor["spec"]["volumes"] if each["name"] == "data")
    assert gib(data["emptyDir"]["sizeLimit"]) * GIB > answer.disk.actor_folders * 1.05
    requested = containers(actor)[0]["resources"]["requests"]["ephemeral-storage"]
    assert requested == data["emptyDir"]["sizeLimit"], "else a node with less disk evicts it later"


def test_pods_have_the_time_for_an_update_and_a_checkpoint(preset: str) -> None:
    answer, file = plan_of(preset), run_of(preset).file
    update_s = file.batch_size * answer.request.training.length / answer.split.trained_tokens_per_s
    assert file.drain_timeout_s >= update_s + checkpoint_s(answer.request.training)
    for pod in own_pods(render(preset)).values():
        assert pod["spec"]["terminationGracePeriodSeconds"] == file.drain_timeout_s + 20


def test_check_before_the_installation_accepts_the_preset_and_refuses_less(preset: str) -> None:
    answer = plan_of(preset)
    training = msgspec.structs.replace(answer.request.training, pass_tokens=1)
    (container,) = containers(named(render(preset), "Job", "t-check")["spec"]["template"])
    options = dict(each.removeprefix("--").split("=") for each in container["args"][2:])
    room = room_of(ranks=1, pods=int(options.pop("pods")), **options)
    assert (room.ranks, room.kind) == (answer.split.learner_gpus, answer.request.gpus.kind)
    assert does_not_fit_room(training, room, keep_checkpoints=answer.request.keep_checkpoints) is None
    less = msgspec.structs.replace(room, memory_bytes=answer.learner_host * 0.9)
    assert does_not_fit_room(training, less, keep_checkpoints=2) is not None
    larger = msgspec.structs.replace(training, lora_rank=0)
    assert does_not_fit_room(larger, room, keep_checkpoints=2) is not None


def test_actors_on_preemptible_nodes_end_within_the_notice_and_the_learner_is_not_on_them() -> None:
    pods = own_pods(render("spot-actors"))
    spot: dict[str, Any] = {"tidegate.dev/capacity": "spot"}
    assert pods["actor"]["spec"]["nodeSelector"] == spot
    assert pods["actor"]["spec"]["terminationGracePeriodSeconds"] < SPOT_NOTICE_S
    assert [each["key"] for each in pods["actor"]["spec"]["tolerations"]] == [
        "nvidia.com/gpu",
        "tidegate.dev/capacity",
    ]
    assert "nodeSelector" not in pods["learner"]["spec"]
    assert pods["learner"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_preset_of_a_model_that_does_not_fit_is_not_made() -> None:
    too_large = chart_presets.Preset(model="32b", gpus="8xH100-80", length=4096, batch_texts=8)
    with pytest.raises(ValueError, match="nearest that fits"):
        too_large.planned()
