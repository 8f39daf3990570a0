"""Groups of episodes over HTTP, as a worker claims, rewards and ends them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.integration.actor.gateway.harness import with_config
from tests.integration.actor.gateway.test_runner import (
    agents,
    calculator_policy,
    made_of,
    question,
    samples_of,
)
from tests.support.broker import free_port
from tests.support.clocks import SkippingClock
from tests.support.service_harness import until
from tests.unit.actor.gateway.fakes import ScriptedEngine
from tidegate.actor.gateway.config import OPERATOR_KEY_VARIABLE
from tidegate.actor.rollouts.outcomes import DroppedTask

pytestmark = pytest.mark.integration


async def ask(
    session: ClientSession, url: str, key: str, body: Any = None, *, method: str = "POST"
) -> tuple[int, Any]:
    """The status and the body of an answer."""
    headers = {"Authorization": f"Bearer {key}"}
    async with session.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(calculator_policy)


@pytest.mark.parametrize("ending", ["silence", "end"])
async def test_group_that_is_claimed_whole_and_not_scored_is_dropped_whole(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """With ``without_reward: zero``: no rubric judged that all of its episodes are worth nothing."""
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    config = with_config(command=(), port=free_port(), idle_s=600.0, episode_deadline_s=6000.0)
    clock = SkippingClock()
    async with (
        agents(engine, config, tmp_path, num_samples=2, clock=clock) as runner,
        ClientSession() as session,
    ):
        running = asyncio.create_task(made_of(runner, question(num_samples=2)))
        await until(lambda: bool(runner.server.address) and runner.num_open == 2)
        base = f"http://{runner.server.address}"

        _, group = await ask(session, f"{base}/tidegate/episodes?groups=true", "operator")
        first, second = group["episodes"]
        assert first["task"]["seed"] != second["task"]["seed"]
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        for member in (first, second):
            await ask(session, f"{member['base_url']}/chat/completions", member["api_key"], hello)
        clock.skipped_s += 500.0
        # One that ended is not idle while another is used.
        await ask(session, f"{second['base_url']}/chat/completions", second["api_key"], hello)
        clock.skipped_s += 500.0
        await asyncio.sleep(0.6)
        assert not running.done()
        rewards = {"rewards": {first["episode_id"]: {"reward": 1.0}}}
        status, answer = await ask(session, group["rewards_url"], group["reward_key"], rewards)
        assert (status, "1 of its 2" in answer["error"]["message"]) == (400, True)
        if ending == "end":
            address = f"{base}/tidegate/groups/{group['group_id']}"
            address += "?why=its+rubric+broke"
            assert (await ask(session, address, group["reward_key"], method="DELETE"))[0] == 200
        else:
            clock.skipped_s += 601.0
        [made] = await running
        rewards["rewards"][second["episode_id"]] = {"reward": 1.0}
        status, _ = await ask(session, group["rewards_url"], group["reward_key"], rewards)
        assert status == 401, "too late"
    assert isinstance(made, DroppedTask)
    assert (made.by, made.reason) == ("failed", "failed")
    assert "was not scored" in made.detail
    assert ("its rubric broke" if ending == "end" else "idle for 600 s") in made.detail
    assert made.length > 0


async def test_rewards_of_a_group_that_are_posted_again_are_answered_as_before(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    config = with_config(command=(), port=free_port(), without_reward="zero")
    async with agents(engine, config, tmp_path, num_samples=2) as runner, ClientSession() as session:
        running = asyncio.create_task(made_of(runner, question(num_samples=2)))
        await until(lambda: bool(runner.server.address) and runner.num_open == 2)

        base = f"http://{runner.server.address}"
        _, group = await ask(session, f"{base}/tidegate/episodes?groups=true", "operator")
        for member in group["episodes"]:
            hello = {"messages": [{"role": "user", "content": "hello"}]}
            await ask(session, f"{member['base_url']}/chat/completions", member["api_key"], hello)
        first, second = (member["episode_id"] for member in group["episodes"])
        rewards: Any = {"rewards": {first: {"reward": 1.0}, second: "it broke"}}
        answers = [await ask(session, group["rewards_url"], group["reward_key"], rewards)]
        samples = samples_of(await running)
        answers.append(await ask(session, group["rewards_url"], group["reward_key"], rewards))
        rewards["rewards"][first] = {"reward": 0.0}
        answers.append(await ask(session, group["rewards_url"], group["reward_key"], rewards))
    assert [status for status, _ in answers] == [200, 200, 409]
    assert [sample.reward for sample in samples] == [1.0, 0.0]
    assert [sample.log for sample in samples] == ["", "no reward: its agent ended it: it broke"]


async def test_episodes_that_the_environment_scores_are_not_claimed_in_groups(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATOR_KEY_VARIABLE, "operator")
    config = with_config(command=(), port=free_port(), reward="environment")
    async with agents(engine, config, tmp_path) as runner, ClientSession() as session:
        await until(lambda: bool(runner.server.address))
        address = f"http://{runner.server.address}/tidegate/episodes?groups=true"
        async with session.post(address, headers={"Authorization": "Bearer operator"}) as response:
            assert response.status == 400
            assert "actor.gateway.reward" in (await response.json())["error"]["message"]
