"""A run of which agents play some environments: each task and each held-out problem goes to who plays it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import msgspec
import pytest

from tests.unit.actor.gateway.fakes import group_task, version
from tidegate.actor.engines.port import Completed, EngineControl
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.mixed_runner import MixedRunner
from tidegate.actor.gateway.runner import AgentRunner, played_by_agents
from tidegate.actor.rollouts.episode_runner import EpisodeRunner
from tidegate.actor.rollouts.heldout import HeldOutProblem
from tidegate.actor.rollouts.outcomes import DroppedTask, RolloutResult, failed_task
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.core.errors import UnavailableError
from tidegate.core.records import Task
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.prompt_sources import EnvShare

ENVS = (EnvShare("verifiers:verse", 1.0, "verse"), EnvShare("arithmetic", 2.0))


class Part:
    """Runs tasks and answers problems by its own name."""

    flows_max = 3

    def __init__(self, name: str, *, step: int = 0) -> None:
        self.name = name
        self.step = step
        self.stopped = False

    def plays(self, env_id: str) -> bool:
        return env_id == "verse"

    async def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        yield failed_task(tasks[0], detail=self.name)

    def stop(self) -> None:
        self.stopped = True

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        await asyncio.sleep(0)
        said = [f"{self.name} {problem.prompt}" for problem in problems]
        rewards = [float(problem.answer) for problem in problems] if self.name == "agents" else None
        return Completed(version(self.step), said, 10 * len(problems), rewards)


def mixed(agents: Part, own: Part) -> MixedRunner:
    served_policy = ServedPolicy(EngineControl(), asyncio.Event())
    return MixedRunner(
        cast("AgentRunner", cast("Any", agents)),
        cast("EpisodeRunner", cast("Any", own)),
        served_policy=served_policy,
    )


async def test_task_is_run_by_who_plays_its_environment() -> None:
    agents, own = Part("agents"), Part("own")
    runner = mixed(agents, own)
    for env_id, name in (("verse", "agents"), ("arithmetic", "own")):
        [made] = [made async for made in runner.run([group_task(env_id=env_id)])]
        assert isinstance(made, DroppedTask)
        assert made.detail == name
    runner.stop()
    assert agents.stopped
    assert own.stopped
    assert runner.flows_max == 3


async def test_held_out_problems_keep_their_places_and_rewards_of_agents_their_answers() -> None:
    asked = [
        HeldOutProblem("a", "1", "0.5", env="verse"),
        HeldOutProblem("b", "2", "0", env="arithmetic"),
        HeldOutProblem("c", "3", "0.25", env="verse"),
    ]
    task = msgspec.structs.replace(group_task(), kind="evaluation")
    completed = await mixed(Part("agents"), Part("own")).complete(task, asked)
    assert completed.completions == ["agents 1", "own 2", "agents 3"]
    assert completed.rewards == [0.5, None, 0.25]
    assert (completed.version, completed.num_tokens) == (version(0), 30)
    with pytest.raises(UnavailableError):
        await mixed(Part("agents", step=1), Part("own")).complete(task, asked)
    only_own = await mixed(Part("agents"), Part("own")).complete(task, asked[1:2])
    assert only_own.rewards == [None]


def test_worker_of_the_library_plays_its_own_environments_and_an_agent_any() -> None:
    workload = WorkloadConfig(kind="text", envs=ENVS)
    everything = {"verse", "arithmetic"}
    assert played_by_agents(workload, GatewayConfig(workers=1)) == {"verse"}
    assert played_by_agents(workload, GatewayConfig(workers=1, command=("mine",))) == everything
    assert played_by_agents(workload, GatewayConfig(port=8123)) == everything
    alone = WorkloadConfig(kind="text", env="verifiers:verse")
    assert played_by_agents(alone, GatewayConfig(workers=1)) == {"verifiers:verse"}
