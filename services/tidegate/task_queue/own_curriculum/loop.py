"""The loop that asks a user's curriculum and gives its weights to the queue.

Consumes: bins of the journal's curriculum, the head. Produces: weights in the journal, before a task is drawn by them.
Waits for: the child process, which has deadlines; admission waits for the first answer only, and no longer than
``FIRST_DEADLINE_S``. Unblocked by: the answer. A failure takes the weights away, so that the queue draws as
``learnable`` does until the next answer.

What is drawn is a function of the journal's state alone, weights included: a restarted queue continues with the very
prompt and the very weights. When an answer arrives depends on the clock, as it does for rewards; the random generator
does not, its seed is that of the run with the position in the dataset and the step.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from tidegate.catalogue import task_queue as statistics
from tidegate.core.curriculum import CurriculumState, uniform_fraction
from tidegate.core.mixed_curriculum import PromptChoice
from tidegate.core.own_weights import WeightsRefused, checked_weights
from tidegate.runtime.drain import Drain
from tidegate.runtime.races import ended_within, run_until
from tidegate.runtime.stats_board import StatsBoard
from tidegate.task_queue.own_curriculum.messages import Weighed, WeightsFailed, WeightsQuestion

# Between two questions: rewards come in by the batch, and a rate is of the last 50.
PERIOD_S = 0.5
# Until then a new run draws nothing: the first tasks are the curriculum's choice as well.
FIRST_DEADLINE_S = 10.0
# Kinds of failures that are logged; all others are counted.
KINDS_MAX = 64


class WeightsLoop:
    """Keeps the weights of a queue's curriculum current."""

    def __init__(
        self,
        curriculum: PromptChoice,
        *,
        drain: Drain,
        stats: StatsBoard,
        log: structlog.stdlib.BoundLogger,
        seed: int,
        weigh: Callable[[WeightsQuestion], Awaitable[Weighed | WeightsFailed]],
        state: Callable[[], CurriculumState],
        step: Callable[[], int],
        keep: Callable[[dict[str, float]], None],
    ) -> None:
        """``seed``: of the run. ``weigh`` asks the code; ``state``, ``step``: of now; ``keep`` journals weights."""
        self._drain = drain
        self._stats = stats
        self._log = log
        self._curriculum = curriculum
        self._seed = seed
        self._weigh = weigh
        self._state = state
        self._step = step
        self._keep = keep
        self._seen: set[tuple[str, str]] = set()
        self._answered = asyncio.Event()
        if state().weights:
            self._answered.set()  # a queue that continues draws by what it had
        stats.add(statistics.CURRICULUM_FAILURES, 0.0)

    async def run(self) -> None:
        """Ask whenever something changed, until draining."""
        drain = self._drain
        asked: WeightsQuestion | None = None
        while not drain.requested:
            question = self._question()
            if question != asked:
                answer = await run_until(drain.wait(), self._weigh(question))
                if answer is None:
                    return
                # A failure may pass without a change of the bins, so it is asked again.
                asked = question if self.take(answer) else None
                self._answered.set()
            await drain.sleep(PERIOD_S)

    async def first_answer(self) -> None:
        """Returns with the first answer or failure, or at the deadline."""
        answered = run_until(self._drain.wait(), self._answered.wait())
        with suppress(TimeoutError):
            await ended_within(answered, timeout_s=FIRST_DEADLINE_S)

    def take(self, answer: Weighed | WeightsFailed) -> bool:
        """Journal what an answer says, or that there is none; returns whether it has weights."""
        names = self._curriculum.names
        found = checked_weights(answer.weights, names) if isinstance(answer, Weighed) else answer
        if isinstance(found, WeightsRefused):
            found = WeightsFailed(found.kind, found.why)
        weights = {} if isinstance(found, WeightsFailed) else found
        if isinstance(found, WeightsFailed):
            self._report(found)
        if weights != self._state().weights:
            self._keep(weights)
        return bool(weights)

    def _question(self) -> WeightsQuestion:
        state, step = self._state(), self._step()
        seed = int(uniform_fraction(self._seed, "curriculum", state.num_drawn, step) * 2**53)
        return WeightsQuestion(self._curriculum.bins_of(state), step, seed)

    def _report(self, failed: WeightsFailed) -> None:
        self._stats.add(statistics.CURRICULUM_FAILURES)
        self._stats.label(statistics.CURRICULUM_FAILURE, failed.why)
        kind = (failed.kind, failed.where)
        if kind in self._seen or len(self._seen) >= KINDS_MAX:
            return
        self._seen.add(kind)
        self._log.error(
            "curriculum_failed",
            error=failed.why,
            consequence="bins are drawn as `learnable` does until its next answer",
            traceback=failed.traceback,
            more="further failures of this kind are counted, and not logged",
        )
