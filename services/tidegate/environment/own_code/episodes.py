"""Episodes of a user's conversation in child processes, each of which plays several, one call at a time.

A process that is late or dead ends with all of its episodes; their callers open them again, by replaying their turns,
in the process that replaces it. An episode's slot is freed by its last turn or by ``end``, which the session of the
episode calls; processes are at most ``num_processes``.
"""

import asyncio
import itertools
import os
from collections.abc import Callable

from tidegate.core.errors import ConfigError, NotFoundError, RecordError, TidegateError, UnavailableError
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.judgements import VerifierFailed, failed_at
from tidegate.environment.own_code.messages import (
    ANSWERS,
    CHILD,
    Answer,
    BeginQuestion,
    EndQuestion,
    Failed,
    Question,
    Ready,
    Replied,
    ReplyQuestion,
)
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.tasks.port import Problem, Score
from tidegate.runtime.own_code.process import ChildProcess, EndedError, LateError
from tidegate.runtime.own_code.references import OwnReference

# Told of a failure in the user's code, with the problem and the turn.
Report = Callable[[VerifierFailed, Problem, str], None]


class _Place:
    """One process and the number of its episodes; ``turn`` makes callers wait for each other."""

    def __init__(self) -> None:
        self.child: ChildProcess[Answer] | None = None
        self.num_episodes = 0
        self.turn = asyncio.Lock()


class OwnEpisode:
    """One episode; ``end`` it."""

    def __init__(self, place: _Place, child: ChildProcess[Answer], name: str, problem: Problem) -> None:
        """``OwnEpisodes.begin`` makes it."""
        self.place = place
        self.child = child
        self.name = name
        self.problem = problem
        self.opening = ""
        self.is_open = True


class OwnEpisodes:
    """All episodes of one worker; ``close`` it."""

    def __init__(self, reference: OwnReference, settings: OwnCodeSettings, *, report: Report) -> None:
        """Starts nothing. ``report``: told of each failure."""
        self._reference = reference
        self._settings = settings
        self._report = report
        self._places = [_Place() for _ in range(settings.num_processes)]
        self._numbers = itertools.count()
        self.is_deterministic = True
        # What the code needs is away, as its last answer said.
        self._is_away = False

    @property
    def env_id(self) -> str:
        """The environment that these episodes are of."""
        return self._reference.written

    async def start(self) -> None:
        """Load the code in a first process, so that a mistake in it is known at once.

        Raises:
            ConfigError: it cannot be loaded, or has no episodes.
        """
        ready = await self._load(self._places[0])
        self.is_deterministic = ready.is_deterministic
        if not ready.is_conversation:
            await self.close()
            raise ConfigError(
                f"{self._reference.written} has no episodes of several turns",
                why="workload.turns_max is above 1, and it has no method begin",
                fix="define begin(problem, seed), or set workload.turns_max to 1",
            )

    async def begin(self, problem: Problem, *, seed: int) -> OwnEpisode:
        """Begin an episode in the process with the fewest.

        Raises:
            UnavailableError: its process is late or ended; another attempt finds another process.
            RecordError: the code failed.
        """
        place = min(self._places, key=lambda each: each.num_episodes)
        place.num_episodes += 1
        try:
            async with place.turn:
                if place.child is None or not place.child.is_alive:
                    await self._load(place)
                assert place.child is not None, "it was loaded"
                episode = OwnEpisode(place, place.child, str(next(self._numbers)), problem)
                question = BeginQuestion(episode.name, problem, seed)
                episode.opening = (await self._asked(episode, question, "")).observation
        except BaseException:
            place.num_episodes -= 1
            raise
        return episode

    async def reply(self, episode: OwnEpisode, text: str) -> ConversationTurn:
        """Take a turn of an episode.

        Raises:
            UnavailableError: as ``begin``; the episode is lost.
            RecordError: the code failed; the episode is over.
        """
        async with episode.place.turn:
            if not episode.is_open or not episode.child.is_alive:
                raise NotFoundError("The process of this episode has ended", fix="open the episode again")
            replied = await self._asked(episode, ReplyQuestion(episode.name, text), text)
        if replied.score is None:
            return ConversationTurn(replied.observation, tools=replied.tools)
        self._forget(episode)
        score = Score(replied.score.reward, replied.score.components, replied.score.log)
        return ConversationTurn(
            replied.observation, score=score, truncated=replied.truncated, tools=replied.tools
        )

    async def end(self, episode: OwnEpisode) -> None:
        """End an episode; a second time changes nothing."""
        if not episode.is_open:
            return
        self._forget(episode)
        async with episode.place.turn:
            if episode.child.is_alive:
                try:
                    await self._asked(episode, EndQuestion(episode.name), "")
                except TidegateError:
                    return  # the process is gone, and the episode with it

    async def close(self) -> None:
        """End all processes."""
        for place in self._places:
            await self._end_process(place)

    def _forget(self, episode: OwnEpisode) -> None:
        if episode.is_open:
            episode.is_open = False
            episode.place.num_episodes -= 1

    async def _asked(self, episode: OwnEpisode, question: Question, text: str) -> Replied:
        try:
            answer = await episode.child.ask(question, deadline_s=self._settings.deadline_s)
        except (LateError, EndedError) as error:
            await self._end_process(episode.place)
            kind = "deadline" if isinstance(error, LateError) else "ended"
            failed = failed_at(kind, error.what, where=error.where)
            self._report(failed, episode.problem, text)
            raise UnavailableError(f"{self._reference.written}: {failed.why}") from error
        except BaseException:  # a cancelled question: the next answer would be to this one
            await self._end_process(episode.place)
            raise
        return self._checked(answer, episode, text)

    def _checked(self, answer: Answer, episode: OwnEpisode, text: str) -> Replied:
        match answer:
            case Replied():
                self._is_away = False
                return answer
            case Failed():
                failed = VerifierFailed(answer.why, answer.kind, answer.where, answer.traceback)
                if answer.retryable:
                    # It is asked again until it is there: told once, and counted as one failure.
                    if not self._is_away:
                        self._report(failed, episode.problem, text)
                    self._is_away = True
                    raise UnavailableError(f"{self._reference.written}: {failed.why}")
                self._report(failed, episode.problem, text)
                raise RecordError(f"{self._reference.written} failed", why=answer.why, fix="correct its code")
            case _:
                raise RecordError(f"The process of {self._reference.written} answered out of turn")

    async def _load(self, place: _Place) -> Ready:
        settings = self._settings
        await self._end_process(place)
        place.child = await ChildProcess[Answer].start(
            CHILD, self._reference, ANSWERS, memory_bytes=settings.memory_bytes, environ=os.environ
        )
        try:
            answer = await place.child.first_answer(deadline_s=settings.start_deadline_s)
        except (LateError, EndedError) as error:
            await self._end_process(place)
            raise self._not_loaded(error.what) from error
        except BaseException:
            await self._end_process(place)
            raise
        if isinstance(answer, Ready):
            return answer
        await self._end_process(place)
        raise self._not_loaded(
            answer.why if isinstance(answer, Failed) else "it answered before it was asked"
        )

    def _not_loaded(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._reference.written} cannot be loaded", why=why, fix="correct it, then start the run again"
        )

    async def _end_process(self, place: _Place) -> None:
        child, place.child = place.child, None
        if child is not None:
            await child.close()
