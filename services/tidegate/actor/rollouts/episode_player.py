"""Plays one episode to its end: the policy's turn, the environment's reply, and so on."""

import itertools

import msgspec

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.token_port import FinishReason, TokenEngine, TokenRequest
from tidegate.actor.rollouts.environment_sessions import EpisodeSession, EpisodeSessions
from tidegate.actor.rollouts.episode import Episode
from tidegate.actor.rollouts.reporting import ReportingProcess
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.catalogue import actor as statistics
from tidegate.core.curriculum import uniform_fraction
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import trajectory_id
from tidegate.core.records import Task
from tidegate.runtime.retrying import Backoff, FailedAttempt, UntilCancelled, retry
from tidegate.wire.clients.environment import EnvironmentStep

# Finish reason of an episode whose turns are used up; the engine reports `stop` and `length`.
TURNS = "turns"
# Attempts on an engine that lost its server; then the task is released to another actor.
ENGINE_ATTEMPTS = 6
BACKOFF = Backoff(start_s=0.15, max_s=3.0)
SEED_RANGE = 2**63


class EpisodePlayer:
    """Plays any number of episodes concurrently, on one engine and the sessions of a run."""

    def __init__(
        self,
        process: ReportingProcess,
        *,
        turns_max: int,
        engine: TokenEngine,
        control: EngineControl,
        sessions: EpisodeSessions | None,
        time_accounting: TimeAccounting,
    ) -> None:
        """``turns_max``: of an episode; one of a single completion has no ``sessions``, and a worker scores it."""
        self._process = process
        self._engine = engine
        self._control = control
        self._sessions = sessions
        self._time_accounting = time_accounting
        self._turns_max = turns_max
        self._requests = itertools.count()

    async def play(self, task: Task, episode: Episode) -> None:
        """Play the episode from its current state to its end; then it has a ``finish_reason``.

        The tokens so far stay in the episode, also after an error.

        Raises:
            RecordError: environment and tokens do not match, or exceed the model's context: permanent. TidegateError:
            engine or environment is unavailable.
        """
        if episode.finish_reason:
            episode.prompt = self._engine.tokenizer.encode_prompt(episode.opening or task.prompt)
            return
        if self._sessions is None:
            episode.prompt = self._engine.tokenizer.encode_prompt(task.prompt)
            episode.finish_reason = await self._write_turn(task, episode)
            return
        session = self._sessions.session(
            task,
            turns=episode.turns(self._engine.tokenizer.decode),
            last=self._said_last(task, episode) if episode.num_tokens else None,
        )
        try:
            await self._converse(task, episode, session)
        finally:
            await session.close()

    def _said_last(self, task: Task, episode: Episode) -> str:
        return episode.reply if episode.num_turns > 1 else episode.opening or task.prompt

    async def _converse(self, task: Task, episode: Episode, session: EpisodeSession) -> None:
        tokenizer = self._engine.tokenizer
        with self._time_accounting.answering():
            observation = await session.open()
        if not episode.num_tokens:
            episode.opening = "" if observation == task.prompt else observation
        episode.prompt = tokenizer.encode_prompt(episode.opening or task.prompt)
        while not episode.finish_reason:
            reason = await self._write_turn(task, episode)
            with self._time_accounting.answering():
                step = await session.step(as_judged(tokenizer.decode(episode.turn), finish_reason=reason))
            episode.record_step(step)
            episode.finish_reason = self._ended(episode, reason, step)
            if episode.finish_reason:
                return
            reply = tokenizer.encode_reply(step.observation)
            if self._room(task, episode) <= len(reply):
                episode.finish_reason = "length"
            else:
                episode.record_reply(step.observation, reply)

    def _ended(self, episode: Episode, reason: FinishReason, step: EnvironmentStep) -> str:
        """The finish reason if this turn ended the episode, else empty."""
        if reason == "length":
            return "length"
        if step.terminated:
            return "stop"
        return TURNS if step.truncated or episode.num_turns >= self._turns_max else ""

    def _left(self, task: Task, episode: Episode) -> int:
        """Tokens that the policy may still choose, by the sampler's cap and the model's context."""
        return min(task.sampler.max_new_tokens - episode.num_chosen, self._room(task, episode))

    def _room(self, task: Task, episode: Episode) -> int:
        """Tokens that the context still holds; none once the sampler's cap is met."""
        if episode.num_chosen >= task.sampler.max_new_tokens:
            return 0
        return self._engine.context_length - len(episode.prompt) - episode.num_tokens

    async def _write_turn(self, task: Task, episode: Episode) -> FinishReason:
        """Generate the current turn to its end; resumes a turn that another actor started."""

        def note(failed: FailedAttempt) -> None:
            self._process.stats.add(statistics.ENGINE_RETRIES)
            self._process.log.warning("engine_unavailable", task_id=task.task_id, error=str(failed.error))

        return await retry(
            lambda: self._write_rest(task, episode),
            BACKOFF,
            attempts=ENGINE_ATTEMPTS,
            draining=UntilCancelled(),
            is_retryable=lambda error: isinstance(error, UnavailableError) and not self._control.stop,
            on_retry=note,
        )

    async def _write_rest(self, task: Task, episode: Episode) -> FinishReason:
        """Generate the rest of the current turn; the tokens stay in the episode, also after an error."""
        stop_ids = self._engine.tokenizer.stop_ids
        if episode.turn and episode.turn[-1] in stop_ids:
            return "stop"
        left = self._left(task, episode)
        if left <= 0:
            if not episode.turn:
                raise RecordError(
                    f"A prompt of task {task.task_id} leaves no room for an answer",
                    why=f"it has {len(episode.prompt)} tokens, the context holds {self._engine.context_length}",
                    fix="raise policy.context_length, or ask shorter questions",
                )
            return "length"
        request = TokenRequest(
            request_id=f"{trajectory_id(task.task_id, sample_index=episode.index)}/{next(self._requests)}",
            context=episode.context,
            sampler=msgspec.structs.replace(task.sampler, max_new_tokens=left),
            stop_ids=stop_ids,
            seed=_seed(task, episode),
        )
        try:
            with self._time_accounting.writing():
                return await self._engine.generate(request, episode.begin_write())
        finally:
            episode.end_write()


def _seed(task: Task, episode: Episode) -> int:
    """A different seed for each sample and each resumed position, so that no draw is used twice."""
    return int(uniform_fraction(task.seed, "draw", episode.index, episode.num_tokens) * SEED_RANGE)
