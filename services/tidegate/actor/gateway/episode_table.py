"""The open episodes of a gateway, and those that wait for a claim.

Bounded by ``episodes_max``; a place is freed by ``close``, which the runner calls however an episode ends.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episodes import KEY_PREFIX, AgentEpisode, no_episode
from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.groups import EpisodeGroup
from tidegate.actor.gateway.rewards import NoReward, Reward
from tidegate.core.errors import BackpressureError, UnavailableError
from tidegate.core.records import Task
from tidegate.runtime.bearer import same_secret
from tidegate.runtime.clock import Clock

T = TypeVar("T")

# Episodes and groups that ended, whose reward may be posted again by a client that has not received the answer.
RECEIPTS_MAX = 4096
# Names of worker processes that ended: more than can have a claim that waits.
ENDED_WORKERS_MAX = 1024


class _Receipts(Generic[T]):
    """What was posted for the last ``RECEIPTS_MAX`` that ended, by id; a further one evicts the oldest."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, T]] = OrderedDict()

    def keep(self, name: str, key: str, posted: T) -> None:
        self._kept[name] = (key, posted)
        while len(self._kept) > RECEIPTS_MAX:
            self._kept.popitem(last=False)

    def of(self, name: str) -> tuple[str, T | None]:
        """The reward key and what was posted; an empty key for an unknown name."""
        return self._kept.get(name, ("", None))


class EpisodeTable:
    """The open episodes by id, and those that wait for an agent's claim, alone or with all others of their group."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._episodes: dict[str, AgentEpisode] = {}
        # In the order of their offers, with their groups.
        self._waiting: dict[str, tuple[AgentEpisode, EpisodeGroup]] = {}
        self._offered = asyncio.Event()
        # Groups that were claimed whole, until their last member is closed; by their ids, and by those of open members.
        self._groups: dict[str, EpisodeGroup] = {}
        self._group_of: dict[str, EpisodeGroup] = {}
        # A claim of a process that was killed may still wait here for a moment.
        self._ended_workers: deque[str] = deque(maxlen=ENDED_WORKERS_MAX)
        self._receipts: _Receipts[Reward] = _Receipts()
        self._group_receipts: _Receipts[Mapping[str, Reward | NoReward]] = _Receipts()

    @property
    def num_open(self) -> int:
        """Open episodes."""
        return len(self._episodes)

    def open(self, task: Task, *, sample_index: int, attempt: int) -> AgentEpisode:
        """A new episode.

        Raises:
            BackpressureError: ``episodes_max`` episodes are open.
        """
        if len(self._episodes) >= self._config.episodes_max:
            raise BackpressureError(
                f"{self._config.episodes_max} episodes are open",
                fix="wait for one to end, or raise actor.gateway.episodes_max",
            )
        now_s = self._clock.monotonic_s()
        episode = AgentEpisode(task, sample_index=sample_index, attempt=attempt, now_s=now_s)
        self._episodes[episode.episode_id] = episode
        return episode

    def close(self, episode: AgentEpisode) -> None:
        """Free its place; its keys are invalid from now on."""
        episode.end()
        if self._episodes.pop(episode.episode_id, None) is not None and episode.reward is not None:
            self._receipts.keep(episode.episode_id, episode.reward_key, episode.reward)
        self._unoffer(episode)
        group = self._group_of.pop(episode.episode_id, None)
        if group is not None and not any(member.episode_id in self._group_of for member in group.members):
            del self._groups[group.group_id]
            if group.rewards is not None:
                self._group_receipts.keep(group.group_id, group.reward_key, group.rewards)

    def offer(self, episode: AgentEpisode, group: EpisodeGroup | None = None) -> None:
        """Offer an episode for a claim. ``group``: of which it is a member; without one it is one by itself."""
        group = group or EpisodeGroup(size=1)
        group.join(episode, now_s=self._clock.monotonic_s())
        self._waiting[episode.episode_id] = (episode, group)
        self._offered.set()

    # -- claims ----------------------------------------------------------------------------------------------------

    async def claim(self, *, worker: str = "", wait_s: float = 0.0) -> AgentEpisode:
        """Give the calling agent the episode that has waited longest, or the first that comes within ``wait_s``.

        ``worker``: its name, if an actor started it.

        Raises:
            UnavailableError: none waits, or the worker has ended.
        """
        episode = await self._first(lambda: self._oldest(worker), wait_s)
        self._unoffer(episode)
        episode.claim(worker=worker, now_s=self._clock.monotonic_s())
        return episode

    async def claim_group(self, *, worker: str = "", wait_s: float = 0.0) -> EpisodeGroup:
        """Give the calling worker, by its name, all episodes of a task at once, as soon as all of them wait.

        Raises:
            UnavailableError: no whole group waits, or the worker has ended.
            RefusedCallError: a group can never be open at once.
        """
        group = await self._first(lambda: self._whole_group(worker), wait_s)
        group.claim(worker=worker, now_s=self._clock.monotonic_s())
        self._groups[group.group_id] = group
        for episode in group.members:
            self._unoffer(episode)
            self._group_of[episode.episode_id] = group
        return group

    async def _first(self, find: Callable[[], T | None], wait_s: float) -> T:
        """What ``find`` finds, now or within ``wait_s``.

        Raises:
            UnavailableError: nothing.
        """
        found: T | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while (found := find()) is None:
                    self._offered.clear()
                    await self._offered.wait()
        if found is None and (found := find()) is None:
            raise UnavailableError(
                "No episode waits for an agent", fix="ask again, or with ?wait_s=20 to wait for one"
            )
        return found

    def _oldest(self, worker: str) -> AgentEpisode | None:
        self._check_worker(worker)
        return next((episode for episode, _ in self._waiting.values()), None)

    def _check_worker(self, worker: str) -> None:
        if worker in self._ended_workers:
            raise UnavailableError(f"Worker {worker[:64]!r} has ended", fix="claim episodes by another name")

    def _whole_group(self, worker: str) -> EpisodeGroup | None:
        self._check_worker(worker)
        for _, group in self._waiting.values():
            if group.is_whole:
                return group
            if group.size > self._config.episodes_max:
                raise RefusedCallError(
                    f"A group of {group.size} episodes is never open at once",
                    why=f"actor.gateway.episodes_max is {self._config.episodes_max}",
                    fix=f"set it to {group.size} or more",
                )
        return None

    def _unoffer(self, episode: AgentEpisode) -> None:
        _, group = self._waiting.pop(episode.episode_id, (None, None))
        if group is not None:
            group.leave(episode)

    def worker_ended(self, worker: str, *, why: str) -> None:
        """A worker's process has ended: what it claimed and did not reward ends now, and not at a deadline."""
        self._ended_workers.append(worker)
        for episode in self._episodes.values():
            if episode.worker == worker:
                episode.lose_worker(why)

    # -- keys ------------------------------------------------------------------------------------------------------

    def by_api_key(self, key: str) -> AgentEpisode:
        """The episode of an agent's key.

        Raises:
            KeyRefusedError: no open episode has this key.
        """
        episode = self._named_in(key)
        return _opened(episode, key, "" if episode is None else episode.api_key)

    def by_reward_key(self, key: str, *, episode_id: str) -> AgentEpisode:
        """The episode with this id, if the reward key is its own.

        Raises:
            KeyRefusedError: the key belongs to no such episode.
        """
        episode = self._episodes.get(episode_id)
        return _opened(episode, key, "" if episode is None else episode.reward_key)

    def by_group_key(self, key: str, *, group_id: str) -> EpisodeGroup:
        """The group with this id that was claimed whole, if the reward key is its own.

        Raises:
            KeyRefusedError: the key belongs to no such group.
        """
        group = self._groups.get(group_id)
        if not same_secret(key, "" if group is None else group.reward_key) or group is None:
            raise no_episode()
        return group

    def reward_of(self, key: str, *, episode_id: str) -> Reward | None:
        """The reward that an episode got, if the reward key is its own; None while it has none or is not known.

        Known are open episodes, and ``RECEIPTS_MAX`` of those that ended.
        """
        episode = self._episodes.get(episode_id)
        wanted, reward = self._receipts.of(episode_id)
        if episode is not None:
            wanted, reward = episode.reward_key, episode.reward
        return reward if same_secret(key, wanted) else None

    def rewards_of(self, key: str, *, group_id: str) -> Mapping[str, Reward | NoReward] | None:
        """The same of a group that was claimed whole."""
        group = self._groups.get(group_id)
        wanted, rewards = self._group_receipts.of(group_id)
        if group is not None:
            wanted, rewards = group.reward_key, group.rewards
        return rewards if same_secret(key, wanted) else None

    def _named_in(self, key: str) -> AgentEpisode | None:
        prefix, _, rest = key.partition("-")
        return self._episodes.get(rest.partition("-")[0]) if prefix == KEY_PREFIX else None


def _opened(episode: AgentEpisode | None, key: str, wanted: str) -> AgentEpisode:
    """Compare in constant time, also when no episode exists."""
    fits = same_secret(key, wanted)
    if episode is None or not fits or episode.ended.is_set():
        raise no_episode()
    return episode
