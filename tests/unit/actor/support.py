"""Tasks, policies and engines for the actor's tests."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tests.support.environments import CARTPOLE
from tidegate.actor.engines.port import Engine, EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.core.ids import LineageName, PolicyVersion, PromptId, RunId, TaskId
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task
from tidegate.core.spaces import EnvironmentDescription
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

LINEAGE = LineageName("0-a")
SAMPLER = Sampler(max_new_tokens=4)
CHAR_LM = PolicyConfig(kind="char_lm", d_model=16, num_layers=2, num_heads=2, context_length=12)


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LINEAGE, step)


def snapshot(step: int, tensors: Mapping[str, Array]) -> PolicySnapshot:
    return PolicySnapshot(version(step), dict(tensors))


def segment_task(task_id: str = "segment-1", *, env_id: str = "CartPole-v1", unroll_length: int = 8) -> Task:
    return Task(
        task_id=TaskId(task_id),
        run_id=RunId("test-run"),
        kind="segment",
        required_version=version(0),
        env_id=env_id,
        unroll_length=unroll_length,
        admitted_at_s=1.0,
        trace_parent=f"00-{1:032x}-{1:016x}-00",
    )


def group_task(
    task_id: str = "group-1", *, prompt: str = "47+38=", num_samples: int = 3, sampler: Sampler = SAMPLER
) -> Task:
    return Task(
        task_id=TaskId(task_id),
        run_id=RunId("test-run"),
        kind="group",
        required_version=version(0),
        num_samples=num_samples,
        prompt_id=PromptId(prompt.rstrip("=")),
        prompt=prompt,
        answer="085",
        env_id="arithmetic",
        curriculum_bin="carries-1",
        sampler=sampler,
        admitted_at_s=1.0,
    )


def evaluation_task(task_id: str = "evaluation-1") -> Task:
    return msgspec.structs.replace(group_task(task_id), kind="evaluation")


def segment_engine(
    control: EngineControl,
    *,
    description: EnvironmentDescription = CARTPOLE,
    num_envs: int = 4,
    hidden: tuple[int, ...] = (8,),
    engine: Literal["auto", "gradient_env"] = "auto",
) -> Engine:
    workload = WorkloadConfig(kind="segments", env=description.env_id, num_envs=num_envs)
    policy = PolicyConfig(kind="mlp", hidden=hidden)
    setting = EngineSetting(workload=workload, policy=policy, seed=0, actor_index=0, description=description)
    return open_engine(engine, setting, control, SystemClock())


def text_engine(
    control: EngineControl, *, evaluation_batch: int = 4, policy: PolicyConfig = CHAR_LM
) -> Engine:
    workload = WorkloadConfig(kind="text", env="arithmetic", num_samples=3, sampler=SAMPLER)
    setting = EngineSetting(
        workload=workload, policy=policy, seed=0, actor_index=0, evaluation_batch=evaluation_batch
    )
    return open_engine("auto", setting, control, SystemClock())
