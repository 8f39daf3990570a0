from typing import Any

import msgspec
import pytest

from tidegate.core.sizing.accelerators import parse_gpus
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.plan import GpuPlan, PlanRequest, plan
from tidegate.core.sizing.pods import DISK_GIB_MIN, DRAIN_S_MIN, pods_of
from tidegate.core.sizing.shapes import SHAPES

GIB = 1 << 30


def planned(model: str, gpus: str, **changes: Any) -> GpuPlan:
    training = msgspec.structs.replace(Training(SHAPES[model], length=2048, lora_rank=16), **changes)
    return plan(PlanRequest(training, parse_gpus(gpus), learner_gpus=changes.get("ranks", 0)))


@pytest.mark.parametrize(
    ("learner_gpus", "pods", "in_pod"), [(1, 1, 1), (6, 1, 6), (8, 1, 8), (16, 2, 8), (48, 6, 8)]
)
def test_learner_has_the_gpus_of_whole_nodes(learner_gpus: int, pods: int, in_pod: int) -> None:
    learner = pods_of(planned("7b", "64xH100-80", ranks=learner_gpus), batch_texts=64).learner
    assert (learner.count, learner.gpus) == (pods, in_pod)


def test_memory_holds_the_plan_the_server_and_what_is_in_shared_memory() -> None:
    answer = planned("32b", "64xA100-40", length=512)
    pods = pods_of(answer, batch_texts=64)
    assert answer.split.tensor_parallel == pods.actor.gpus > 1
    for pod, needed in (
        (pods.actor, answer.actor_host + 4e9 * pods.actor.gpus),
        (pods.learner, answer.learner_host),
    ):
        assert (pod.memory_gib - pod.shared_memory_gib) * GIB >= needed * 1.1
        assert pod.shared_memory_gib >= pod.gpus


def test_time_to_end_grows_with_the_batch_and_small_disks_have_a_least_size() -> None:
    answer = planned("0.5b", "8xH100-80")
    small, large = (pods_of(answer, batch_texts=texts) for texts in (1, 4096))
    assert small.drain_s == DRAIN_S_MIN
    assert large.drain_s >= 4096 * 2048 / answer.split.trained_tokens_per_s
    assert small.learner.disk_gib == DISK_GIB_MIN
