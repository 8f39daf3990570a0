"""Episodes: their keys, tasks and deadlines.

An episode has two keys. The agent's key allows only calls; the reward key belongs to the judge, so that neither a
program nor model-written code can reward itself. Bounded by ``episodes_max``; a place is freed by ``close``, which the
runner calls however an episode ends.
"""

import asyncio
import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from tidegate.actor.gateway.chains import Recorder
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.errors import KeyRefusedError, RefusedCallError
from tidegate.actor.gateway.messages import CalledTool, ChatMessage
from tidegate.actor.gateway.responses_api import RememberedResponse
from tidegate.actor.gateway.rewards import Reward
from tidegate.core.errors import BackpressureError, ConflictError, UnavailableError
from tidegate.core.records import Task, ToolCall
from tidegate.runtime.bearer import same_secret
from tidegate.runtime.clock import Clock

KEY_PREFIX = "tg"
SECRET_BYTES = 24
# Episodes that ended, whose reward may be posted again by a client that has not received the answer.
RECEIPTS_MAX = 4096


class AgentEpisode:
    """One agent at one task. ``ended`` is set once nothing more will be recorded."""

    def __init__(self, task: Task, *, sample_index: int, attempt: int, now_s: float) -> None:
        """``now_s``: monotonic seconds. The seed differs between the samples of a task and repeats with it."""
        self.episode_id = secrets.token_hex(8)
        self.api_key = f"{KEY_PREFIX}-{self.episode_id}-{secrets.token_hex(SECRET_BYTES)}"
        self.reward_key = f"{KEY_PREFIX}-{self.episode_id}-{secrets.token_hex(SECRET_BYTES)}"
        self.task = task
        self.sample_index = sample_index
        self.seed = derived_seed(task.task_id, task.seed, sample_index, attempt)
        self.recorder = Recorder()
        self.reward: Reward | None = None
        self._responses: dict[str, RememberedResponse] = {}
        self.tool_calls: list[ToolCall] = []
        self._calls_out: dict[str, tuple[CalledTool, float]] = {}
        self.claimed = asyncio.Event()
        self.ended = asyncio.Event()
        self.used_at_s = now_s
        self.num_calls = 0
        self._under_way: set[asyncio.Task[object]] = set()

    @property
    def num_in_flight(self) -> int:
        """Calls in flight."""
        return len(self._under_way)

    def end(self) -> None:
        """Accept no more calls and cancel those in flight."""
        self.ended.set()
        for call in self._under_way:
            call.cancel()

    def give_reward(self, reward: Reward) -> None:
        """Set the reward and end the episode.

        Raises:
            ConflictError: it has ended.
        """
        if self.ended.is_set():
            raise ConflictError(
                f"Episode {self.episode_id} has ended", fix="post one reward, before the episode's deadline"
            )
        self.reward = reward
        self.end()

    def remember(self, response_id: str, response: RememberedResponse) -> None:
        """Keep a response for the call that continues it; bounded by the calls of an episode."""
        self._responses[response_id] = response

    def response(self, response_id: str | None) -> RememberedResponse | None:
        """The response that a call continues; None if it continues none.

        Raises:
            RefusedCallError: this episode has no such response.
        """
        if response_id is None:
            return None
        if response_id not in self._responses:
            raise RefusedCallError(
                f"There is no response {response_id[:64]!r} in this episode",
                param="previous_response_id",
                code="previous_response_not_found",
                fix="name a response of the same episode, or send the whole input",
            )
        return self._responses[response_id]

    def called(self, calls: Sequence[CalledTool], *, now_s: float) -> None:
        """A reply called tools (seconds since the epoch)."""
        self._calls_out |= {call.call_id: (call, now_s) for call in calls}

    def answered(self, messages: Sequence[ChatMessage], *, now_s: float) -> None:
        """Messages, some of them results of tools; each result is recorded once."""
        for message in messages:
            call, called_at_s = self._calls_out.pop(message.call_id, (None, 0.0))
            if call is not None and message.role == "tool":
                self.tool_calls.append(
                    ToolCall(call.name, call.arguments, message.content, called_at_s, now_s)
                )

    @contextmanager
    def calling(self, *, calls_max: int, turns_max: int, clock: Clock) -> Generator[int]:
        """Count one call until its answer; yields its number.

        Raises:
            KeyRefusedError: the episode ended while the call's body arrived.
            BackpressureError: as many calls as allowed are in flight.
            RefusedCallError: the episode has made all of its calls.
        """
        if self.ended.is_set():
            raise _no_episode()
        if self.num_in_flight >= calls_max:
            raise BackpressureError(
                f"{calls_max} calls of this episode are in flight", fix="wait for one of them to be answered"
            )
        if self.num_calls >= turns_max:
            raise RefusedCallError(
                f"This episode has made its {turns_max} calls",
                code="turns_exhausted",
                fix="end it, or raise actor.gateway.turns_max",
            )
        call = asyncio.current_task()
        assert call is not None, "calls are answered by tasks"
        self.num_calls += 1
        self.used_at_s = clock.monotonic_s()
        self._under_way.add(call)
        try:
            yield self.num_calls
        finally:
            self._under_way.discard(call)
            self.used_at_s = clock.monotonic_s()


class EpisodeTable:
    """The open episodes by id, and those that wait for an agent's claim."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._episodes: dict[str, AgentEpisode] = {}
        self._waiting: deque[AgentEpisode] = deque()
        self._offered = asyncio.Event()
        # (reward key, reward) of episodes that ended, by id, the oldest first.
        self._receipts: OrderedDict[str, tuple[str, Reward]] = OrderedDict()

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
            self._receipts[episode.episode_id] = (episode.reward_key, episode.reward)
            while len(self._receipts) > RECEIPTS_MAX:
                self._receipts.popitem(last=False)
        if episode in self._waiting:
            self._waiting.remove(episode)

    def offer(self, episode: AgentEpisode) -> None:
        """Offer an episode for a claim."""
        self._waiting.append(episode)
        self._offered.set()

    async def claim(self, *, wait_s: float = 0.0) -> AgentEpisode:
        """Give the calling agent the episode that has waited longest, or the first that comes within ``wait_s``.

        Raises:
            UnavailableError: none waits.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._waiting:
                    self._offered.clear()
                    await self._offered.wait()
        if not self._waiting:
            raise UnavailableError(
                "No episode waits for an agent", fix="ask again, or with ?wait_s=20 to wait for one"
            )
        episode = self._waiting.popleft()
        episode.used_at_s = self._clock.monotonic_s()
        episode.claimed.set()
        return episode

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

    def reward_of(self, key: str, *, episode_id: str) -> Reward | None:
        """The reward that an episode got, if the reward key is its own; None while it has none or is not known.

        Known are open episodes, and ``RECEIPTS_MAX`` of those that ended.
        """
        episode = self._episodes.get(episode_id)
        wanted, reward = self._receipts.get(episode_id, ("", None))
        if episode is not None:
            wanted, reward = episode.reward_key, episode.reward
        return reward if same_secret(key, wanted) else None

    def _named_in(self, key: str) -> AgentEpisode | None:
        prefix, _, rest = key.partition("-")
        return self._episodes.get(rest.partition("-")[0]) if prefix == KEY_PREFIX else None


def _opened(episode: AgentEpisode | None, key: str, wanted: str) -> AgentEpisode:
    """Compare in constant time, also when no episode exists."""
    fits = same_secret(key, wanted)
    if episode is None or not fits or episode.ended.is_set():
        raise _no_episode()
    return episode


def _no_episode() -> KeyRefusedError:
    return KeyRefusedError("This key opens no episode", why="it is wrong, or its episode has ended")


def derived_seed(*parts: object) -> int:
    """A 63-bit seed from any printable values."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
