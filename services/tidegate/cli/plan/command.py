"""``tidegate plan``."""

from typing import Any

import msgspec
import typer

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.option_groups import grouped
from tidegate.cli.plan.answer import PlanAnswer, work_out
from tidegate.cli.plan.measured import RunMeasurements
from tidegate.cli.plan.model_page import render_model
from tidegate.cli.plan.model_question import ask_model
from tidegate.cli.plan.options import (
    BalanceOptions,
    ModelOptions,
    PriceOptions,
    RolloutOptions,
    SourceOptions,
)
from tidegate.cli.plan.page import write_page
from tidegate.cli.plan.question import PlanFlags, ask
from tidegate.cli.plan.render import render
from tidegate.core.errors import ConfigError
from tidegate.core.sizing.fitting import Machine, does_not_fit
from tidegate.core.sizing.plan import plan as plan_gpus

EXIT_DOES_NOT_FIT = 1


@grouped
def plan(
    balance: BalanceOptions,
    rollouts: RolloutOptions,
    model: ModelOptions,
    prices: PriceOptions,
    source: SourceOptions,
) -> None:
    """Predict bottleneck, cost, cheapest size and speed-up by asynchrony of a configuration.

    For example `tidegate plan --actors 16 --actor-rate 1000 --learner-rate 12000 --batch 256`,
    `tidegate plan --actors 8 --rollout lognormal:2.0:1.0 --train 0.5`, or `tidegate plan --from-run DIR --actors 32`.

    `tidegate plan --model 7b --gpus 8xH100-80 --lora 16 --length 4k` predicts memory, rates, versions, disk and cost
    of a language model instead; it ends with 1 if that does not fit.
    """
    if model.model:
        plan_model(model, balance, rollouts, source)
        return
    question, run = ask(PlanFlags(balance, rollouts, prices), from_run=source.from_run)
    answer = work_out(question)
    if source.html is not None:
        write_page(source.html, question, answer)
    if source.json:
        write_json(as_document(answer, run))
    else:
        console = open_console()
        console.print(render(answer, run))
        if source.html is not None:
            console.print(f"page: {source.html}")


def plan_model(
    options: ModelOptions, balance: BalanceOptions, rollouts: RolloutOptions, source: SourceOptions
) -> None:
    """Plan a language model on GPUs.

    Raises:
        ConfigError: the options describe no plan.
        typer.Exit: the plan does not fit.
    """
    if source.from_run is not None or source.html is not None:
        raise ConfigError("--model has neither --from-run nor --html", fix="leave them out")
    answer = plan_gpus(ask_model(options, balance=balance, rollouts=rollouts))
    misfit = does_not_fit(answer, Machine())
    if source.json:
        write_json({**msgspec.to_builtins(answer), "does_not_fit": misfit and msgspec.to_builtins(misfit)})
    else:
        open_console().print(render_model(answer, misfit), soft_wrap=True)
    if misfit is not None:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def as_document(answer: PlanAnswer, run: RunMeasurements | None) -> dict[str, Any]:
    """The answer for ``--json``; the measurements without their thousands of durations."""
    document: dict[str, Any] = msgspec.to_builtins(answer)
    if run is None:
        return {**document, "measured": None}
    measured: dict[str, Any] = msgspec.to_builtins(run)
    del measured["rollout"]
    return {**document, "measured": {**measured, "rollout_mean_s": run.rollout.mean_s}}
