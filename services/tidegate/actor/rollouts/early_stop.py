"""Early stop of groups whose first samples are rewarded alike: without differences there is no advantage."""

from collections.abc import Sequence

from tidegate.actor.engines.port import Rollouts
from tidegate.actor.rollouts.scoring import any_worker, score_all
from tidegate.catalogue import actor as statistics
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import TidegateError
from tidegate.core.ids import TaskId
from tidegate.core.long_tail import may_stop_early
from tidegate.core.records import Task
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion


class EarlyStopCheck:
    """``long_tail.early_stop_after`` samples of a group are generated first: ``num_first``, 0 is off."""

    def __init__(self, context: ServiceContext) -> None:
        """Samples without a reward are scored by any environment worker."""
        self._context = context
        self._environment = any_worker(context)
        self.num_first = context.settings.long_tail.early_stop_after

    def applies_to(self, task: Task) -> bool:
        """Whether a task is generated in two rounds."""
        return self.num_first > 0 and task.kind == "group" and task.num_samples > self.num_first

    async def groups_to_stop(self, first: Sequence[Rollouts], *, share: float = 1.0) -> set[TaskId]:
        """The groups whose samples so far are rewarded alike; none when no environment worker answers.

        ``share`` of the actor waits for it, and the wait is counted in proportion.
        """
        context = self._context
        started_at_s = context.clock.monotonic_s()
        try:
            rewards = await self._rewards(first)
        except TidegateError as error:
            context.stats.add(statistics.EARLY_STOP_CHECKS_FAILED)
            context.log.warning("early_stop_check_failed", error=str(error))
            return set()
        context.stats.add(statistics.WAIT_SCORE_S, share * (context.clock.monotonic_s() - started_at_s))
        size = self.num_first
        return {
            rollouts.task.task_id
            for number, rollouts in enumerate(first)
            if _are_alike(rewards[number * size : (number + 1) * size], samples_min=size)
        }

    async def _rewards(self, first: Sequence[Rollouts]) -> list[float | None]:
        """Rewards of all samples in order: from their episodes where present, else from a verifier; None: it failed."""
        samples = [(rollouts.task, sample) for rollouts in first for sample in rollouts.samples]
        known = [sample.reward for _, sample in samples]
        if None not in known:
            return known
        completions = [
            Completion(
                task.prompt_id,
                task.prompt,
                task.answer,
                as_judged(sample.completion, finish_reason=sample.finish_reason),
                task.curriculum_bin,
            )
            for task, sample in samples
        ]
        scored = await score_all(self._environment, [task.env_id for task, _ in samples], completions)
        return [None if item.failed else item.reward for item in scored]


def _are_alike(rewards: Sequence[float | None], *, samples_min: int) -> bool:
    """Whether a group may stop early; what a verifier failed at says nothing about the group."""
    known = [reward for reward in rewards if reward is not None]
    return len(known) == len(rewards) and may_stop_early(known, samples_min=samples_min)
