"""``tidegate plan``."""

from typing import Any

import msgspec
from rich.console import Console

from tidegate.cli.json_output import write_json
from tidegate.cli.option_groups import grouped
from tidegate.cli.plan.answer import PlanAnswer, work_out
from tidegate.cli.plan.measured import RunMeasurements
from tidegate.cli.plan.options import BalanceOptions, PriceOptions, RolloutOptions, SourceOptions
from tidegate.cli.plan.page import write_page
from tidegate.cli.plan.question import PlanFlags, ask
from tidegate.cli.plan.render import render


@grouped
def plan(
    balance: BalanceOptions, rollouts: RolloutOptions, prices: PriceOptions, source: SourceOptions
) -> None:
    """Predict bottleneck, cost, cheapest size and speed-up by asynchrony of a configuration.

    For example `tidegate plan --actors 16 --actor-rate 1000 --learner-rate 12000 --batch 256`,
    `tidegate plan --actors 8 --rollout lognormal:2.0:1.0 --train 0.5`, or `tidegate plan --from-run DIR --actors 32`.
    """
    question, run = ask(PlanFlags(balance, rollouts, prices), from_run=source.from_run)
    answer = work_out(question)
    if source.html is not None:
        write_page(source.html, question, answer)
    if source.json:
        write_json(as_document(answer, run))
    else:
        console = Console()
        console.print(render(answer, run), highlight=False)
        if source.html is not None:
            console.print(f"page: {source.html}", highlight=False, markup=False)


def as_document(answer: PlanAnswer, run: RunMeasurements | None) -> dict[str, Any]:
    """The answer for ``--json``; the measurements without their thousands of durations."""
    document: dict[str, Any] = msgspec.to_builtins(answer)
    if run is None:
        return {**document, "measured": None}
    measured: dict[str, Any] = msgspec.to_builtins(run)
    del measured["rollout"]
    return {**document, "measured": {**measured, "rollout_mean_s": run.rollout.mean_s}}
