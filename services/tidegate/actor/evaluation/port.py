"""The interface of all evaluators, and the one way in which their results are published."""

from typing import Protocol

import msgspec

from tidegate.catalogue import actor as statistics
from tidegate.catalogue.kinds import Gauge
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Task
from tidegate.runtime.service import ServiceContext

EVENT_KIND = "evaluation"


class EvaluationResult(msgspec.Struct, frozen=True):
    """What one version achieved: statistics of the actor's board, and the fields of the event."""

    version: PolicyVersion
    figures: dict[Gauge, float]
    event: dict[str, float]


class Evaluator(Protocol):
    """Measures the policy that this actor serves."""

    async def evaluate(self, task: Task) -> EvaluationResult:
        """Measure one version, which makes all of it; ends soon after a drain was requested.

        Raises:
            DeadlineError: it took too long; another actor would be no faster.
            TidegateError: it could not be finished; another actor may.
        """
        ...


async def publish_result(context: ServiceContext, result: EvaluationResult) -> None:
    """Put the result on the board and publish it as an event."""
    stats = context.stats
    for statistic, value in result.figures.items():
        stats.set(statistic, value)
    stats.label(statistics.EVALUATION_VERSION, str(result.version))
    stats.label(statistics.EVALUATION_PROBLEM, "")
    stats.add(statistics.EVALUATIONS)
    context.log.info("evaluated", version=str(result.version), **result.event)
    await context.bus.event(
        EVENT_KIND, {"version": str(result.version), **result.event, "at_s": context.clock.now_s()}
    )
