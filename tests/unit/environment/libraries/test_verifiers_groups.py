"""Groups of episodes that a rubric scores together: whom it sees, and what is posted of its verdicts."""

import asyncio
from typing import Any, cast

import pytest

from tests.unit.environment.libraries.fakes import Library
from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_gateway import ClaimedGroup, GatewayClient, Member
from tidegate.environment.libraries.verifiers_groups import GroupWorker
from tidegate.environment.libraries.verifiers_settings import EpisodeVerdict, Seat, VerifiersSettings

SEATS = [Seat("http://gateway/v1", str(number)) for number in range(3)]
TASK = {"env": "mine", "prompt_id": "train-0"}
GROUP = ClaimedGroup(
    "g-1", "http://gateway/rewards", "reward", 60.0,
    tuple(Member(f"e-{seat.api_key}", seat.base_url, seat.api_key, TASK) for seat in SEATS),
)  # fmt: skip


class Gateway:
    """Notes what is posted and which groups are ended."""

    def __init__(self, *, takes: bool = True) -> None:
        self.posted: list[Any] = []
        self.ended: list[str] = []
        self._takes = takes

    async def post(self, _url: str, _key: str, verdict: object) -> bool:
        self.posted.append(verdict)
        return self._takes

    async def end(self, path: str, _key: str, *, why: str) -> None:
        assert why
        self.ended.append(path)


def env_of(_library: Library) -> VerifiersEnv:
    return VerifiersEnv(VerifiersSettings(id="mine"))


def worker_of(gateway: Gateway, library: Library) -> GroupWorker:
    client = cast("GatewayClient", cast("Any", gateway))
    return GroupWorker({"mine": env_of(library)}, client, name="w", episodes_max=4)


@pytest.mark.slow
async def test_rubric_scores_all_episodes_of_a_group_at_once(library: Library) -> None:
    verdicts = await env_of(library).play_group({"prompt": "say"}, SEATS, model="policy", play_s=60.0)
    assert library.seen == [["0", "1", "2"]]
    assert verdicts == [EpisodeVerdict(3.0, {"key": number}, "") for number in (0.0, 1.0, 2.0)]
    assert library.cleaned == ["0", "1", "2"]


async def test_rubric_sees_the_episodes_that_ended_in_time_without_an_error(library: Library) -> None:
    library.says = {"0": "hangs", "1": KeyError("broke")}
    verdicts = await env_of(library).play_group({"prompt": "say"}, SEATS, model="policy", play_s=0.05)
    assert library.seen == [["2"]]
    assert [type(verdict) for verdict in verdicts] == [TimeoutError, KeyError, EpisodeVerdict]


async def test_group_without_any_episode_that_ended_raises_what_the_first_did(library: Library) -> None:
    library.says = dict.fromkeys("012", KeyError("broke"))
    with pytest.raises(KeyError, match="broke"):
        await env_of(library).play_group({"prompt": "say"}, SEATS, model="policy", play_s=60.0)
    assert library.seen == []


async def test_evaluated_episode_is_a_group_of_one(library: Library) -> None:
    verdict = await env_of(library).play({"prompt": "say"}, SEATS[1], model="policy")
    assert verdict == EpisodeVerdict(1.0, {"key": 1.0}, "")


@pytest.mark.parametrize("own", [True, False])
def test_part_of_an_environment_may_score_groups(library: Library, *, own: bool) -> None:
    library.requires_group_rollouts = False
    part = Library(requires_group_rollouts=own)
    library.__dict__["envs"] = [Library(requires_group_rollouts=False), part]
    assert env_of(library).scores_groups is own


def test_environment_that_begins_groups_in_a_harness_is_refused(library: Library) -> None:
    library.__dict__["harness"] = object()
    with pytest.raises(ConfigError, match="harness"):
        env_of(library)


def test_what_is_no_environment_of_the_library_is_refused_with_what_it_lacks(library: Library) -> None:
    def load_environment(_env_id: str) -> object:
        return object()

    library.__dict__["load_environment"] = load_environment
    with pytest.raises(ConfigError, match=r"returned a object, which has no build_dataset"):
        env_of(library)


async def test_worker_posts_the_rewards_of_a_group_at_once(library: Library) -> None:
    library.says = {"1": "error"}
    gateway = Gateway()
    await worker_of(gateway, library).play(GROUP)
    [posted] = gateway.posted
    assert posted["rewards"] == {
        "e-0": EpisodeVerdict(3.0, {"key": 0.0}, ""),
        "e-1": "The environment reports an error. no server.",
        "e-2": EpisodeVerdict(3.0, {"key": 2.0}, ""),
    }
    assert gateway.ended == []


@pytest.mark.parametrize("error", [KeyError("broke"), asyncio.CancelledError(), TimeoutError()])
async def test_group_whose_rubric_raises_is_ended_and_the_worker_goes_on(
    library: Library, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def score_group(_states: object) -> None:
        raise error

    monkeypatch.setattr(library, "score_group", score_group)
    gateway = Gateway()
    await worker_of(gateway, library).play(GROUP)
    assert (gateway.posted, gateway.ended) == ([], ["groups/g-1"])


async def test_group_whose_rewards_are_refused_is_ended(library: Library) -> None:
    gateway = Gateway(takes=False)
    await worker_of(gateway, library).play(GROUP)
    assert gateway.ended == ["groups/g-1"]


async def test_environment_beside_it_that_scores_single_episodes_does_so_in_its_groups(
    library: Library,
) -> None:
    library.requires_group_rollouts = False
    library.says = {"0": KeyError("broke")}
    gateway = Gateway()
    await worker_of(gateway, library).play(GROUP)
    [posted] = gateway.posted
    first, *others = (posted["rewards"][f"e-{number}"] for number in range(3))
    assert first.startswith("KeyError at ")
    assert others == [EpisodeVerdict(1.0, {}, "")] * 2
    assert library.seen == []


async def test_worker_claims_no_more_groups_than_it_may_play_at_once(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, hold = 0, asyncio.Event()

    async def claim(_kind: object, params: dict[str, str]) -> ClaimedGroup:
        nonlocal claims
        claims += 1
        assert params == {"groups": "true", "worker": "w"}
        return GROUP

    async def play(_group: object) -> None:
        await hold.wait()

    gateway = Gateway()
    monkeypatch.setattr(gateway, "claim", claim, raising=False)
    worker = worker_of(gateway, library)
    monkeypatch.setattr(worker, "play", play)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.01)
    # Three episodes each: after the first there is room, after the second there is none.
    assert claims == 2
    hold.set()
    await asyncio.sleep(0.01)
    assert claims > 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
