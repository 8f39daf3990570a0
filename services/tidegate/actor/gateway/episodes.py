"""Episodes: their keys, calls and rewards.

An episode has two keys. The agent's key allows only calls; the reward key belongs to the judge, so that neither a
program nor model-written code can reward itself.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tidegate.actor.gateway.chains import Recorder
from tidegate.actor.gateway.errors import KeyRefusedError, RefusedCallError
from tidegate.actor.gateway.messages import CalledTool, ChatMessage
from tidegate.actor.gateway.responses_api import RememberedResponse
from tidegate.actor.gateway.rewards import Reward
from tidegate.core.errors import BackpressureError, ConflictError
from tidegate.core.records import Task, ToolCall
from tidegate.runtime.clock import Clock

KEY_PREFIX = "tg"
SECRET_BYTES = 24


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
        # Why its agent ended it without a reward, where it said so.
        self.ended_because = ""
        # Who claimed it, as that process names itself; and why it will never reward it.
        self.worker = ""
        self.worker_ended = ""
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

    def end(self, *, because: str = "") -> None:
        """Accept no more calls and cancel those in flight."""
        if not self.ended.is_set():
            self.ended_because = because
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

    def claim(self, *, worker: str, now_s: float) -> None:
        """Give it to an agent; ``worker``: its name, empty for one without. ``now_s``: monotonic seconds."""
        self.worker = worker
        self.used_at_s = now_s
        self.claimed.set()

    def lose_worker(self, why: str) -> None:
        """The process that played it has ended; nothing happens to an episode that ended before."""
        if not self.ended.is_set():
            self.worker_ended = why
            self.end(because=why)

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
            raise no_episode()
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


def derived_seed(*parts: object) -> int:
    """A 63-bit seed from any printable values."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def no_episode() -> KeyRefusedError:
    """The refusal of a key that is wrong, or whose episode or group has ended."""
    return KeyRefusedError("This key opens no episode", why="it is wrong, or its episode has ended")
