"""Runs tasks on an engine that writes tokens: many concurrently, each sample a separate episode.

A task ends as soon as all of its samples are done. The engine reads a group's prompt once where it can. An engine with
room gets the next task immediately, so that one long answer delays only its group. The tokens of a stopped task are
checkpointed for the next actor.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.token_port import TokenEngine
from tidegate.actor.rollouts.deadlines import DeadlineWatch
from tidegate.actor.rollouts.early_stop import EarlyStopCheck
from tidegate.actor.rollouts.engine_stats import report_engine
from tidegate.actor.rollouts.episode import Episode, Group
from tidegate.actor.rollouts.episode_player import EpisodePlayer
from tidegate.actor.rollouts.heldout import HeldOutProblem, asked, complete_under_one_version
from tidegate.actor.rollouts.latency import rollout_time_s
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult, cut_short, stopped_early
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.actor.rollouts.progress_checkpoints import ProgressCheckpoints
from tidegate.actor.rollouts.resumption import fresh, resume
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.actor.rollouts.token_counts import TokenCounts
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import RecordError, TidegateError
from tidegate.core.ids import TaskId
from tidegate.core.records import Task
from tidegate.runtime.races import run_until
from tidegate.runtime.service import ServiceContext


class EpisodeRunner:
    """Runs each task in a separate flow; as many as fit into the engine's slots with all of their samples."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        engine: TokenEngine,
        player: EpisodePlayer,
        control: EngineControl,
        predictions: Predictions,
        deadlines: DeadlineWatch,
        checkpoints: ProgressCheckpoints,
        served_policy: ServedPolicy,
        time_accounting: TimeAccounting,
        slots: int,
    ) -> None:
        """``slots``: concurrent continuations of the engine. ``deadlines`` marks the tasks to cut."""
        self.flows_max = max(1, slots // context.settings.workload.num_samples)
        self.batch_max = 1
        self._context = context
        self._engine = engine
        self._player = player
        self._control = control
        self._predictions = predictions
        self._deadlines = deadlines
        self._checkpoints = checkpoints
        self._served_policy = served_policy
        self._slots = slots
        self._latency = context.settings.workload.latency_by_bin()
        self._early_stop = EarlyStopCheck(context)
        self._time_accounting = time_accounting
        self._tokens = TokenCounts(context.stats)

    async def account(self) -> None:
        """Keep the statistics current while long rollouts run, until draining."""

        def also() -> None:
            self._time_accounting.update()
            self._tokens.update()

        await report_engine(self._context, self._control, also)

    def stop(self) -> None:
        """Stop running rollouts; their progress is checkpointed for other actors."""
        self._control.stop = True
        self._deadlines.changed.set()

    def close(self) -> None:
        """Nothing to release except memory."""

    async def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """Run one task; a stopped one has no result."""
        [task] = tasks
        try:
            self._engine.check_task(task)
        except TidegateError as error:
            yield RefusedTask(task, error)
            return
        group = await self._begin(task)
        self._deadlines.track_group(task, group)
        self._checkpoints.track(group)
        try:
            with self._tokens.writing(group):
                result = await self._result(group)
            self._tokens.record_end(group, result)
            if result is None or isinstance(result, RefusedTask):
                await self._checkpoints.write(group)
                self._checkpoints.release(task.task_id)
        finally:
            self._checkpoints.untrack(task.task_id)
            self._deadlines.untrack(task.task_id)
        if result is not None:
            yield result

    async def _begin(self, task: Task) -> Group:
        """The task's group: resumed from another actor's progress, or fresh."""
        context = self._context
        capped = self._predictions.capped(task)
        progress, head = await self._checkpoints.find(task), self._served_policy.version
        now_s = context.clock.now_s()
        if progress is None or head is None:
            return fresh(capped, now_s=now_s)
        resumed = resume(
            progress,
            capped,
            head=head,
            tree=self._served_policy.tree,
            limits=self._context.live.limits(),
            now_s=now_s,
        )
        context.stats.add(statistics.TOKENS_RESUMED, resumed.tokens_resumed)
        context.stats.add(statistics.TOKENS_LOST, resumed.tokens_lost)
        context.stats.add(
            statistics.ROLLOUTS_RESUMED if resumed.tokens_resumed else statistics.ROLLOUTS_RESTARTED
        )
        context.log.info(
            "rollout_resumed",
            task_id=task.task_id,
            tokens_resumed=resumed.tokens_resumed,
            tokens_lost=resumed.tokens_lost,
        )
        return resumed.group

    async def _result(self, group: Group) -> RolloutResult | None:
        """The result of a group; None when it was stopped."""
        task = group.task
        try:
            result = await run_until(self._stopped(task.task_id), self._make(group))
        except RecordError as error:
            self._context.stats.add(statistics.EPISODES_FAILED)
            return self._failed(group, error)
        except TidegateError as error:
            return None if self._control.stop else RefusedTask(task, error)
        if result is not None:
            if isinstance(result, Rollouts):
                self._predictions.record_duration(result)
            return result
        mark = self._deadlines.marks.get(task.task_id)
        if mark is None:
            return None
        self._predictions.record_cut(task, elapsed_s=mark.elapsed_s, length=mark.length)
        return cut_short(task, mark, num_made=group.num_started)

    async def _stopped(self, task_id: TaskId | None = None) -> None:
        """Return as soon as the engine must stop or the task is marked for a cut."""
        changed = self._deadlines.changed
        while not (self._control.stop or task_id in self._deadlines.marks):
            changed.clear()
            await changed.wait()

    async def _make(self, group: Group) -> Rollouts | DroppedTask:
        """Generate all samples, or first some and then the rest, and wait until their time has passed."""
        task, check = group.task, self._early_stop
        num_first = check.num_first if check.applies_to(task) else task.num_samples
        played = await self._round(group, 0, num_first, since_s=group.started_at_s)
        if num_first < task.num_samples:
            if task.task_id in await check.groups_to_stop([played], share=1.0 / self.flows_max):
                return stopped_early(task, played)
            played = await self._round(group, num_first, task.num_samples, since_s=played.finished_at_s)
        return played

    async def _round(self, group: Group, start: int, stop: int, *, since_s: float) -> Rollouts:
        """Play some of the samples to their ends; returns the rollouts up to ``stop``, once their time has passed."""
        await self._play(group.task, group.episodes[start:stop])
        decode, clock = self._engine.tokenizer.decode, self._context.clock
        rollouts = group.rollouts(decode, num_samples=stop, finished_at_s=clock.now_s())
        if stop == group.task.num_samples:
            self._predictions.record_lengths(rollouts)
        part = msgspec.structs.replace(group.task, num_samples=stop - start)
        wanted_s = rollout_time_s(self._latency, part, first_sample=start)
        # A clock that was set back since the start makes no rollout wait longer than a whole one.
        left_s = min(wanted_s, wanted_s - (clock.now_s() - since_s))
        if left_s <= 0.0:
            return rollouts
        with self._time_accounting.waiting():
            await asyncio.sleep(left_s)
        return msgspec.structs.replace(rollouts, finished_at_s=clock.now_s())

    async def _play(self, task: Task, episodes: Sequence[Episode]) -> None:
        """Play episodes concurrently; the first failure ends the others."""
        try:
            async with asyncio.TaskGroup() as together:
                for episode in episodes:
                    together.create_task(self._player.play(task, episode))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    def _failed(self, group: Group, error: RecordError) -> DroppedTask:
        return DroppedTask(
            task=group.task,
            by="failed",
            reason="failed",
            detail=str(error),
            length=group.length,
            elapsed_s=max(0.0, self._context.clock.now_s() - group.started_at_s),
            num_made=group.num_started,
        )

    # -- evaluation ------------------------------------------------------------------------------------------------

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        """Answer held-out problems under one policy, which is held meanwhile; rollouts continue.

        Raises:
            UnavailableError: the actor is draining, or the engine changed its policy; another actor will answer.
        """

        async def play() -> list[Sample] | None:
            episodes = await run_until(self._stopped(), self._answers(task, problems))
            decode = self._engine.tokenizer.decode
            return None if episodes is None else [episode.sample(decode) for episode in episodes]

        return await complete_under_one_version(self._served_policy, play)

    async def _answers(self, task: Task, problems: Sequence[HeldOutProblem]) -> list[Episode]:
        """One episode per problem, as many concurrently as the engine has slots."""
        episodes = [Episode(index) for index in range(len(problems))]
        places = asyncio.Semaphore(self._slots)

        async def answer(episode: Episode, problem: HeldOutProblem) -> None:
            async with places:
                await self._player.play(asked(task, problem), episode)

        try:
            async with asyncio.TaskGroup() as together:
                for episode, problem in zip(episodes, problems, strict=True):
                    together.create_task(answer(episode, problem))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        return episodes
