"""Episodes: bounded, each with its own keys, rewarded once."""

import asyncio

import pytest

from tests.unit.actor.gateway.fakes import group_task
from tidegate.actor.gateway import episode_table as module
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episode_table import EpisodeTable
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.errors import KeyRefusedError
from tidegate.actor.gateway.messages import CalledTool, ChatMessage
from tidegate.actor.gateway.rewards import Reward
from tidegate.core.errors import BackpressureError, ConflictError, UnavailableError
from tidegate.runtime.clock import SystemClock

CONFIG = GatewayConfig(command=("agent",), episodes_max=2)


@pytest.fixture
def table() -> EpisodeTable:
    return EpisodeTable(CONFIG, SystemClock())


def opened(table: EpisodeTable, *, sample_index: int = 0, attempt: int = 0) -> AgentEpisode:
    return table.open(group_task(), sample_index=sample_index, attempt=attempt)


async def test_place_of_an_episode_is_free_once_it_is_closed(table: EpisodeTable) -> None:
    first, _ = opened(table), opened(table)
    with pytest.raises(BackpressureError):
        opened(table)
    table.close(first)
    assert opened(table).episode_id != first.episode_id
    assert table.num_open == 2


async def test_each_key_opens_its_own_episode_for_its_own_purpose(table: EpisodeTable) -> None:
    one, other = opened(table), opened(table)
    assert table.by_api_key(one.api_key) is one
    assert table.by_reward_key(other.reward_key, episode_id=other.episode_id) is other
    for wrong in ("", one.api_key, other.reward_key, one.reward_key + "x", "\N{SNOWMAN}"):
        with pytest.raises(KeyRefusedError):
            table.by_reward_key(wrong, episode_id=one.episode_id)
    for wrong in (
        "",
        "tg",
        "tg-",
        f"tg-{one.episode_id}",
        one.reward_key,
        one.api_key[:-1],
        one.api_key.upper(),
    ):
        with pytest.raises(KeyRefusedError):
            table.by_api_key(wrong)


async def test_call_whose_body_arrives_after_the_end_of_its_episode_is_refused(table: EpisodeTable) -> None:
    episode = opened(table)
    episode.end()
    with (
        pytest.raises(KeyRefusedError),
        episode.calling(calls_max=1, turns_max=1, clock=SystemClock()),
    ):
        raise AssertionError("it is not answered")
    assert episode.num_calls == 0


async def test_ended_episode_is_opened_by_nothing_and_rewarded_no_more(table: EpisodeTable) -> None:
    episode = opened(table)
    episode.give_reward(Reward(1.0))
    with pytest.raises(KeyRefusedError):
        table.by_api_key(episode.api_key)
    with pytest.raises(ConflictError):
        episode.give_reward(Reward(2.0))
    assert episode.reward == Reward(1.0)


async def test_episodes_wait_for_agents_in_order_and_closed_ones_do_not(table: EpisodeTable) -> None:
    first, second = opened(table), opened(table)
    table.offer(first)
    table.offer(second)
    table.close(first)
    assert await table.claim() is second
    assert second.claimed.is_set()
    with pytest.raises(UnavailableError):
        await table.claim()


async def test_seeds_differ_between_samples_and_attempts_and_repeat_with_them(table: EpisodeTable) -> None:
    seeds: dict[tuple[int, int], int] = {}
    for sample_index, attempt in [(0, 0), (1, 0), (0, 1)]:
        for _ in range(2):
            episode = opened(table, sample_index=sample_index, attempt=attempt)
            assert seeds.setdefault((sample_index, attempt), episode.seed) == episode.seed
            table.close(episode)
    assert len(set(seeds.values())) == 3


async def test_claim_waits_for_the_first_episode_that_comes(table: EpisodeTable) -> None:
    claims = [asyncio.create_task(table.claim(wait_s=60.0)) for _ in range(2)]
    await asyncio.sleep(0)
    offered = opened(table), opened(table)
    for episode in offered:
        table.offer(episode)
    assert {(await claim).episode_id for claim in claims} == {episode.episode_id for episode in offered}
    with pytest.raises(UnavailableError):
        await table.claim(wait_s=0.01)


async def test_worker_that_ended_ends_the_episodes_that_it_did_not_reward_and_claims_no_more(
    table: EpisodeTable,
) -> None:
    lost, other = opened(table), opened(table, sample_index=1)
    for episode, worker in ((lost, "a"), (other, "b")):
        table.offer(episode)
        assert await table.claim(worker=worker) is episode
    table.worker_ended("a", why="killed")
    assert (lost.worker_ended, other.worker_ended) == ("killed", "")
    assert (lost.ended.is_set(), other.ended.is_set()) == (True, False)
    other.give_reward(Reward(1.0))
    table.worker_ended("b", why="killed")
    assert other.worker_ended == "", "it was rewarded before"
    table.close(lost)
    table.offer(opened(table, sample_index=2))
    with pytest.raises(UnavailableError, match="'a' has ended"):
        await table.claim(worker="a")
    assert await table.claim(worker="c")


async def test_reward_is_known_after_the_end_to_its_own_key(
    table: EpisodeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECEIPTS_MAX", 2)
    rewarded: list[AgentEpisode] = []
    for value in range(3):
        episode = opened(table)
        assert table.reward_of(episode.reward_key, episode_id=episode.episode_id) is None
        episode.give_reward(Reward(float(value)))
        assert table.reward_of(episode.reward_key, episode_id=episode.episode_id) == Reward(float(value))
        table.close(episode)
        rewarded.append(episode)
    known = [table.reward_of(each.reward_key, episode_id=each.episode_id) for each in rewarded]
    assert known == [None, Reward(1.0), Reward(2.0)], "the oldest is forgotten"
    for wrong in ("", rewarded[2].api_key, rewarded[1].reward_key):
        assert table.reward_of(wrong, episode_id=rewarded[2].episode_id) is None
    assert table.reward_of("", episode_id="unknown") is None


async def test_tools_results_are_noted_once_with_their_calls(table: EpisodeTable) -> None:
    episode = opened(table)
    episode.called([CalledTool("c1", "calculator", "{}")], now_s=1.0)
    results = [
        ChatMessage("user", "c1"),
        ChatMessage("tool", "4", call_id="c1"),
        ChatMessage("tool", "5", call_id="other"),
    ]
    for _ in range(2):
        episode.answered(results, now_s=3.0)
    [call] = episode.tool_calls
    assert (call.name, call.result, call.started_at_s, call.finished_at_s) == ("calculator", "4", 1.0, 3.0)
