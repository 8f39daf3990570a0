"""Lengths predicted from this actor's rollouts, for caps, batches of similar length and deadlines.

Each actor learns from its own rollouts alone, so nothing is shared and a restart forgets them; a bin is known after
some twenty rollouts of it.
"""

import msgspec

from tidegate.actor.engines.port import Rollouts
from tidegate.core.lengths import LengthPredictor, SurvivalCurve
from tidegate.core.long_tail import capped_length
from tidegate.core.records import Task
from tidegate.runtime.config import LongTailConfig

# The finish reason of a completion that ended by itself.
ENDED = "stop"


class Predictions:
    """Tokens per sample and seconds per task, by curriculum bin; only those that a setting needs.

    Deadlines go by seconds, because versions come per second: a rollout's time holds its tokens, and also its weight
    swaps, its tools and the others in its batch. For a group it is the time of its slowest sample.
    """

    def __init__(self, config: LongTailConfig) -> None:
        self._config = config
        self._tokens = LengthPredictor(half_life=config.half_life)
        self._seconds = LengthPredictor(half_life=config.half_life)
        self._wants_tokens = config.cap_quantile > 0.0 or config.group_by_length
        self._wants_seconds = config.policy == "cut"

    def record_lengths(self, rollouts: Rollouts) -> None:
        """Learn the lengths of completions; one that met its cap would have been longer."""
        task = rollouts.task
        if self._wants_tokens and task.kind == "group":
            for sample in rollouts.samples:
                ended = sample.finish_reason == ENDED
                self._tokens.observe(task.curriculum_bin, sample.num_steps, ended=ended)

    def record_duration(self, rollouts: Rollouts) -> None:
        """Learn the duration of a whole task."""
        if self._wants_seconds:
            took_s = rollouts.finished_at_s - rollouts.started_at_s
            self._seconds.observe(rollouts.task.curriculum_bin, took_s)

    def record_cut(self, task: Task, *, elapsed_s: float, length: int) -> None:
        """Learn from a task that was cut: it would have taken longer.

        Its longest completion counts for its tokens; how many of the others had ended is not known.
        """
        self._seconds.observe(task.curriculum_bin, elapsed_s, ended=False)
        if self._wants_tokens and task.kind == "group":
            self._tokens.observe(task.curriculum_bin, length, ended=False)

    def seconds(self, task: Task) -> SurvivalCurve:
        """The durations of tasks of this bin."""
        return self._seconds.curve(task.curriculum_bin)

    def capped(self, task: Task) -> Task:
        """The task with its new tokens capped at its bin's quantile, where the run file asks for it."""
        config, sampler = self._config, task.sampler
        if config.cap_quantile == 0.0 or task.kind != "group":
            return task
        cap = capped_length(
            self._tokens.curve(task.curriculum_bin),
            quantile=config.cap_quantile,
            length_max=sampler.max_new_tokens,
            cache_share=config.overlong_share if config.overlong_weight > 0.0 else 0.0,
        )
        return msgspec.structs.replace(task, sampler=msgspec.structs.replace(sampler, max_new_tokens=cap))

    def expected_tokens(self, task: Task) -> float:
        """The mean length of a bin's completions; the task's cap while it is unknown."""
        mean = self._tokens.curve(task.curriculum_bin).mean_remaining(0.0)
        return float(task.sampler.max_new_tokens) if mean is None else mean
