"""Groups of episodes: claimed whole by one worker, rewarded whole or not at all."""

import asyncio

import msgspec
import pytest

from tests.unit.actor.gateway.fakes import group_task
from tidegate.actor.gateway import episode_table as module
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episode_table import EpisodeTable
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.errors import KeyRefusedError, RefusedCallError
from tidegate.actor.gateway.groups import EpisodeGroup
from tidegate.actor.gateway.rewards import WHY_CHARS_MAX, NoReward, Reward, read_group_rewards
from tidegate.core.errors import ConflictError, UnavailableError
from tidegate.runtime.clock import SystemClock

CONFIG = GatewayConfig(command=("agent",), episodes_max=4)


@pytest.fixture
def table() -> EpisodeTable:
    return EpisodeTable(CONFIG, SystemClock())


def offered(table: EpisodeTable, group: EpisodeGroup, *, count: int) -> list[AgentEpisode]:
    """``count`` members of a group that wait for a claim."""
    episodes = [
        table.open(group_task(num_samples=group.size), sample_index=index, attempt=0)
        for index in range(count)
    ]
    # Not in the order of their samples.
    for episode in reversed(episodes):
        table.offer(episode, group)
    return episodes


async def claimed(table: EpisodeTable, *, size: int = 2, worker: str = "w") -> EpisodeGroup:
    offered(table, EpisodeGroup(size=size), count=size)
    return await table.claim_group(worker=worker)


def rewards_of(group: EpisodeGroup) -> dict[str, Reward | NoReward]:
    return {member.episode_id: Reward(float(member.sample_index)) for member in group.members}


async def test_group_is_claimed_once_all_of_its_episodes_wait_and_in_the_order_of_its_samples(
    table: EpisodeTable,
) -> None:
    group = EpisodeGroup(size=3)
    claim = asyncio.create_task(table.claim_group(wait_s=60.0))
    first = offered(table, group, count=2)
    await asyncio.sleep(0.01)
    assert not claim.done()
    with pytest.raises(UnavailableError):
        await table.claim_group()
    last = table.open(group_task(num_samples=3), sample_index=2, attempt=0)
    table.offer(last, group)
    assert await claim is group
    assert group.members == [*first, last]
    assert all(member.claimed.is_set() for member in group.members)
    with pytest.raises(UnavailableError):
        await table.claim()


async def test_group_of_which_one_was_claimed_alone_is_no_whole_group(table: EpisodeTable) -> None:
    offered(table, EpisodeGroup(size=2), count=2)
    await table.claim()
    with pytest.raises(UnavailableError):
        await table.claim_group()
    assert await table.claim()


async def test_every_member_gets_its_reward_at_the_same_moment(table: EpisodeTable) -> None:
    group = await claimed(table)
    assert table.by_group_key(group.reward_key, group_id=group.group_id) is group
    group.give_rewards(rewards_of(group))
    assert [member.reward for member in group.members] == [Reward(0.0), Reward(1.0)]
    assert all(member.ended.is_set() for member in group.members)
    with pytest.raises(ConflictError):
        group.give_rewards(rewards_of(group))


async def test_member_without_a_verdict_ends_without_a_reward(table: EpisodeTable) -> None:
    group = await claimed(table)
    first, second = group.members
    group.give_rewards({first.episode_id: NoReward("it broke"), second.episode_id: Reward(1.0)})
    assert (first.reward, second.reward) == (None, Reward(1.0))
    assert (first.ended.is_set(), first.ended_because) == (True, "it broke")


async def test_members_end_with_the_first_reason_that_is_given(table: EpisodeTable) -> None:
    group = await claimed(table)
    group.members[0].end(because="it broke")
    group.end(because="its rubric broke")
    table.worker_ended("w", why="killed")
    assert [member.ended_because for member in group.members] == ["it broke", "its rubric broke"]


async def test_rewards_after_the_end_of_one_member_reward_none(table: EpisodeTable) -> None:
    group = await claimed(table)
    rewards = rewards_of(group)
    group.members[0].end()
    with pytest.raises(ConflictError, match="1 of its 2"):
        group.give_rewards(rewards)
    assert [member.reward for member in group.members] == [None, None]
    assert group.rewards is None


@pytest.mark.parametrize("wrong", ["one", "another"])
async def test_rewards_of_other_episodes_reward_none(table: EpisodeTable, wrong: str) -> None:
    group = await claimed(table)
    rewards = rewards_of(group)
    del rewards[group.members[0].episode_id]
    if wrong == "another":
        rewards["e-0"] = Reward(1.0)
    with pytest.raises(RefusedCallError, match="not the rewards"):
        group.give_rewards(rewards)
    assert [member.ended.is_set() for member in group.members] == [False, False]


async def test_worker_that_ended_ends_the_groups_that_it_did_not_reward_and_claims_no_more(
    table: EpisodeTable,
) -> None:
    rewarded, lost = await claimed(table, size=1, worker="a"), await claimed(table, size=1, worker="a")
    other = await claimed(table, size=1, worker="b")
    rewarded.give_rewards(rewards_of(rewarded))
    table.worker_ended("a", why="killed")
    assert (rewarded.worker_ended, lost.worker_ended, other.worker_ended) == ("", "killed", "")
    assert lost.members[0].ended.is_set()
    assert not other.members[0].ended.is_set()
    offered(table, EpisodeGroup(size=1), count=1)
    with pytest.raises(UnavailableError, match="'a' has ended"):
        await table.claim_group(worker="a")
    assert await table.claim_group(worker="b")


async def test_claim_of_a_worker_that_ends_while_it_waits_takes_nothing(table: EpisodeTable) -> None:
    claim = asyncio.create_task(table.claim_group(worker="a", wait_s=60.0))
    await asyncio.sleep(0)
    table.worker_ended("a", why="killed")
    offered(table, EpisodeGroup(size=1), count=1)
    with pytest.raises(UnavailableError):
        await claim
    assert await table.claim_group(worker="b")


async def test_group_that_is_larger_than_the_table_is_refused_with_the_setting(table: EpisodeTable) -> None:
    offered(table, EpisodeGroup(size=5), count=4)
    with pytest.raises(RefusedCallError, match=r"episodes_max is 4.*set it to 5"):
        await table.claim_group()


async def test_rewards_are_known_after_the_end_to_their_own_key(
    table: EpisodeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECEIPTS_MAX", 2)
    groups: list[EpisodeGroup] = []
    for _ in range(3):
        group = await claimed(table)
        assert table.rewards_of(group.reward_key, group_id=group.group_id) is None
        group.give_rewards(rewards_of(group))
        for member in group.members:
            assert table.rewards_of(group.reward_key, group_id=group.group_id) == rewards_of(group)
            table.close(member)
        groups.append(group)
    known = [table.rewards_of(each.reward_key, group_id=each.group_id) for each in groups]
    assert known == [None, rewards_of(groups[1]), rewards_of(groups[2])], "the oldest is forgotten"
    for wrong in ("", groups[1].reward_key):
        assert table.rewards_of(wrong, group_id=groups[2].group_id) is None
        with pytest.raises(KeyRefusedError):
            table.by_group_key(wrong, group_id=groups[2].group_id)
    assert table.num_open == 0


async def test_group_was_used_when_any_of_its_members_was(table: EpisodeTable) -> None:
    group = await claimed(table)
    first, second = group.members
    first.used_at_s, second.used_at_s = 7.0, 5.0
    assert group.used_at_s == 7.0
    assert (group.num_in_flight, group.num_chosen, group.has_calls) == (0, 0, False)


def test_posted_rewards_are_read_by_episode() -> None:
    body = b'{"rewards": {"a": {"reward": 1, "turns": 3}, "b": "it broke"}}'
    assert read_group_rewards(body) == {"a": Reward(1.0, {"turns": 3.0}), "b": NoReward("it broke")}
    long = msgspec.json.encode({"rewards": {"a": "x" * 1000}})
    assert read_group_rewards(long) == {"a": NoReward("x" * WHY_CHARS_MAX)}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"reward": 1.0}',
        b'{"rewards": {"a": 1.0}}',
        b'{"rewards": {"a": null}}',
        b'{"rewards": {"a": {"reward": 1e39}}}',
        b'{"rewards": {}, "more": 1}',
        msgspec.json.encode({"rewards": {"a": {"reward": 0.0, "log": "x" * 9000}}}),
    ],
)
def test_what_is_no_rewards_of_a_group_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedCallError, match="rewards of a group"):
        read_group_rewards(body)
