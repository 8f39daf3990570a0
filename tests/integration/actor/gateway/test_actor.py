"""An actor whose episodes external agents play: a real broker, the torch engine, an environment that scores."""

import os
import signal
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.integration.actor.harness import (
    announce_policy,
    count_of,
    emptied,
    give,
    group,
    trajectories,
    version,
)
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running, until
from tests.support.settings import make_settings
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.catalogue import actor as statistics
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import ConfigError
from tidegate.core.ids import PromptId
from tidegate.core.records import Sampler, Task
from tidegate.environment import main as environment_main
from tidegate.environment.config import EnvironmentConfig
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import CharTokenizer
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import LongTailConfig, PolicyConfig, Settings, WorkloadConfig
from tidegate.runtime.prompt_sources import EnvShare
from tidegate.wire.subjects import Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[4]
FAKE = str(ROOT / "tests" / "support" / "fake_verifiers")
VERSE = ROOT / "tests" / "integration" / "environment" / "my_verse.py"
SPEC = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=64)
SAMPLER = Sampler(max_new_tokens=8)
TURNS = ("1", "2")
# A program that sends another message after each reply.
PROGRAM = f"""
import sys, openai
client = openai.OpenAI()
messages = []
for text in (sys.argv[1], *{TURNS!r}):
    messages.append({{"role": "user", "content": text}})
    reply = client.chat.completions.create(model="policy", messages=messages, seed=1)
    messages.append(reply.choices[0].message)
"""


def agent_config(**fields: object) -> ActorConfig:
    gateway = GatewayConfig(
        command=("python", "-c", PROGRAM, "{prompt}"), reward="environment", tool_calls="bracket"
    )
    return ActorConfig(
        engine="torch",
        slots=4,
        ack_wait_s=1.0,
        retry_delay_s=0.2,
        gateway=msgspec.structs.replace(gateway, **fields),
    )


def question(task_id: str, *, num_samples: int = 2) -> Task:
    return msgspec.structs.replace(
        group(task_id, num_samples=num_samples),
        env_id="calculator",
        prompt_id=PromptId("3+4"),
        prompt="3+4=",
        answer="7",
        sampler=SAMPLER,
    )


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return msgspec.structs.replace(
        make_settings(tmp_path, broker_url=nats.url, drain_timeout_s=10.0),
        workload=WorkloadConfig(kind="text", env="calculator", num_samples=2, sampler=SAMPLER),
        policy=PolicyConfig(kind="char_lm", d_model=16, num_layers=2, num_heads=2, context_length=64),
    )


@pytest.mark.extended
async def test_actor_plays_the_environments_beside_those_of_verifiers_itself(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [FAKE, *sys.path])
    monkeypatch.setenv("PYTHONPATH", FAKE)
    envs = (
        EnvShare("verifiers:my-verse", 1.0, "verse", {"num_rows": 10}),
        EnvShare("arithmetic", 1.0, "plus"),
    )
    workload = msgspec.structs.replace(settings.workload, env="", envs=envs)
    mixed = msgspec.structs.replace(settings, workload=workload, files_dir=str(VERSE.parent))
    gateway = GatewayConfig(
        workers=1,
        pass_env=("PYTHONPATH",),
        sampling="override",
        unknown_fields="ignore",
        claim_deadline_s=120.0,
    )
    config = ActorConfig(engine="torch", slots=4, gateway=gateway)
    asked = [
        msgspec.structs.replace(
            question("task-0"), env_id="verse", prompt_id=PromptId("train-7"), prompt="say 7"
        ),
        msgspec.structs.replace(question("task-1"), env_id="plus", answer="007"),
    ]
    await announce_policy(bus, topology, 2, CharLm(SPEC).to_arrays())
    await give(bus, topology, asked)
    async with (
        running(environment_main.build, EnvironmentConfig(), make_context("environment", mixed, bus=bus)),
        running(main.build, config, make_context("actor", mixed, bus=bus)),
    ):
        records = await trajectories(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
    found = {record.trajectory_id: record for record in records}
    assert sorted(found) == ["task-0.0", "task-0.1", "task-1.0", "task-1.1"]
    for trajectory_id, record in found.items():
        validate_trajectory(record, run_id=mixed.run)
        is_verse = trajectory_id.startswith("task-0")
        assert record.env_id == ("verse" if is_verse else "plus")
        assert ("length" if is_verse else "digits") in record.reward_components


@pytest.mark.parametrize("alone", [False, True], ids=["a group", "an episode"])
async def test_work_of_a_worker_that_is_killed_while_it_scores_is_played_again_and_comes_once(
    bus: Bus,
    topology: Topology,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    monkeypatch.setattr(sys, "path", [FAKE, *sys.path])
    monkeypatch.setenv("PYTHONPATH", FAKE)
    hold = tmp_path / "hold"
    hold.touch()
    workload = msgspec.structs.replace(
        settings.workload, env="verifiers:my-verses", env_kwargs={"hold": str(hold), "alone": alone}
    )
    settings = msgspec.structs.replace(settings, workload=workload, files_dir=str(VERSE.parent))
    gateway = GatewayConfig(
        workers=1,
        pass_env=("PYTHONPATH",),
        sampling="override",
        unknown_fields="ignore",
        claim_deadline_s=120.0,
        # What ends by the worker's death alone ends soon.
        idle_s=600.0,
        episode_deadline_s=600.0,
    )
    config = ActorConfig(engine="torch", slots=4, ack_wait_s=1.0, retry_delay_s=0.2, gateway=gateway)
    asked = [
        msgspec.structs.replace(
            question(f"task-{number}"), env_id=workload.env, prompt_id=PromptId("train-7"), prompt="say 7"
        )
        for number in range(2)
    ]
    await announce_policy(bus, topology, 2, CharLm(SPEC).to_arrays())
    await give(bus, topology, asked)
    async with running(main.build, config, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: bool(pids_in(hold)))
        [killed] = pids_in(hold)
        os.kill(killed, signal.SIGKILL)
        hold.unlink()
        records = await trajectories(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) == 4)
    assert context.stats.value(statistics.TASKS_FAILED) >= 1, "it was refused once"
    assert context.stats.value(gateway_stats.EPISODES_WITHOUT_REWARD) == 0
    assert sorted(record.trajectory_id for record in records) == [
        "task-0.0", "task-0.1", "task-1.0", "task-1.1",
    ]  # fmt: skip
    for record in records:
        validate_trajectory(record, run_id=settings.run)
        assert record.reward is not None
        assert record.reward_components.get("compared", 2.0) == 2.0


def pids_in(hold: Path) -> list[int]:
    """The processes that score groups of `my_verses`."""
    path = Path(f"{hold}.pids")
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_agents_episodes_are_whole_scored_groups_with_the_policys_own_logprobs(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    model = CharLm(SPEC, generator=torch.Generator().manual_seed(7))
    await announce_policy(bus, topology, 2, model.to_arrays())
    await give(bus, topology, [question(f"task-{number}") for number in range(2)])
    async with (
        running(environment_main.build, EnvironmentConfig(), make_context("environment", settings, bus=bus)),
        running(main.build, agent_config(), make_context("actor", settings, bus=bus)) as context,
    ):
        records = await trajectories(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) == 4)
    assert await count_of(bus, topology, "ROLLOUTS") == 0
    assert sorted(record.trajectory_id for record in records) == [
        "task-0.0", "task-0.1", "task-1.0", "task-1.1",
    ]  # fmt: skip
    tokenizer = CharTokenizer()
    for record in records:
        validate_trajectory(record, run_id=settings.run)
        assert record.reward is not None
        assert "exact" in record.reward_components
        assert [str(span.version) for span in record.spans] == [str(version(2))]
        tokens, chosen = record.tensors["tokens"], record.tensors["chosen"]
        prompt = record.tensors["prompt_tokens"].tolist()
        assert prompt == tokenizer.encode_prompt("3+4=")
        assert record.num_steps == int(chosen.sum())
        assert tokenizer.decode(tokens[~chosen].tolist()) == "".join(TURNS)
        everything = torch.tensor([[*prompt, *tokens.tolist()]])
        with torch.no_grad():
            hidden, _ = model(everything)
            logprobs = model.next_logprobs(hidden)[0, :-1].gather(-1, everything[0, 1:, None])[:, 0].numpy()
        own = logprobs[len(prompt) - 1 :]
        np.testing.assert_allclose(record.tensors["behavior_logprobs"][chosen], own[chosen], atol=1e-5)
    assert len({record.completion for record in records}) > 1, "a seed of the program's own makes no copies"


async def test_tasks_of_stopped_agents_are_released(
    bus: Bus, topology: Topology, settings: Settings, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    waits = f"import time; open({str(started)!r}, 'w').close(); time.sleep(600)"
    settings = msgspec.structs.replace(settings, drain_timeout_s=1.0)
    await announce_policy(bus, topology, 0, CharLm(SPEC).to_arrays())
    await give(bus, topology, [question("task-1", num_samples=1)])
    config = agent_config(command=(sys.executable, "-c", waits))
    async with running(main.build, config, make_context("actor", settings, bus=bus)) as context:
        await until(started.exists)
    assert context.stats.value(statistics.TASKS_RELEASED) == 1
    assert await count_of(bus, topology, "TASKS") == 1


async def test_run_with_features_that_agents_lack_is_refused(bus: Bus, settings: Settings) -> None:
    cutting = msgspec.structs.replace(settings, long_tail=LongTailConfig(policy="cut"))
    with pytest.raises(ConfigError, match=r"long_tail\.policy"):
        await main.build(make_context("actor", cutting, bus=bus), agent_config())
    batches = msgspec.structs.replace(agent_config(), engine="text_generation")
    with pytest.raises(ConfigError, match="writes tokens"):
        await main.build(make_context("actor", settings, bus=bus), batches)


def test_gateway_that_no_agent_could_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="no port"):
        GatewayConfig()
