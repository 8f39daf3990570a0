"""``tidegate plan``."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from tidegate.cli.plan.answer import PlanAnswer, work_out
from tidegate.cli.plan.measured import MeasuredRun
from tidegate.cli.plan.page import write_page
from tidegate.cli.plan.question import Flags, ask
from tidegate.cli.plan.render import render
from tidegate.cli.plan.specs import DURATIONS_HELP
from tidegate.core.planner.rollout import LAG_WALL, PENALTY_PER_VERSION

BALANCE = "Balance"
ROLLOUTS = "Rollouts"
PRICES = "Prices (dollars an hour)"


def plan(
    actors: Annotated[int | None, typer.Option(help="Actors.", rich_help_panel=BALANCE)] = None,
    actor_rate: Annotated[
        float | None, typer.Option(help="Samples/s of one actor.", rich_help_panel=BALANCE)
    ] = None,
    learner_rate: Annotated[
        float | None, typer.Option(help="Samples/s of one learner replica.", rich_help_panel=BALANCE)
    ] = None,
    update_rate: Annotated[
        float | None,
        typer.Option(help="Updates/s of one replica, instead of its samples/s.", rich_help_panel=BALANCE),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples an update.", rich_help_panel=BALANCE)] = None,
    replicas: Annotated[int, typer.Option(help="Learner replicas.", rich_help_panel=BALANCE)] = 1,
    speedup: Annotated[
        str | None,
        typer.Option(
            help="Measured speedups as 1:1,2:1.9,4:3.5; without it G·(1 − 0.04·(G − 1)).",
            rich_help_panel=BALANCE,
        ),
    ] = None,
    environments: Annotated[
        int | None,
        typer.Option(
            help="Environment workers; none if rewards come with the rollout.", rich_help_panel=BALANCE
        ),
    ] = None,
    environment_rate: Annotated[
        float | None, typer.Option(help="Samples/s of one environment worker.", rich_help_panel=BALANCE)
    ] = None,
    store_rate: Annotated[
        float, typer.Option(help="Samples/s of the store; 0 if it never binds.", rich_help_panel=BALANCE)
    ] = 0.0,
    max_lag: Annotated[
        int | None, typer.Option(help="Staleness budget, versions.", rich_help_panel=BALANCE)
    ] = None,
    after: Annotated[
        float,
        typer.Option(
            help="Seconds after which queue and lag are asked for.", min=0.0, rich_help_panel=BALANCE
        ),
    ] = 60.0,
    target_rate: Annotated[
        float,
        typer.Option(help="Samples/s that the cheapest size is to reach.", min=0.0, rich_help_panel=BALANCE),
    ] = 0.0,
    rollout: Annotated[
        str | None,
        typer.Option(help=f"How long a rollout takes: {DURATIONS_HELP}.", rich_help_panel=ROLLOUTS),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Rollouts that one actor makes at once.", min=1, rich_help_panel=ROLLOUTS),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(
            help="Rollouts a step trains on, all of which a synchronous step waits for; the batch without it.",
            rich_help_panel=ROLLOUTS,
        ),
    ] = None,
    train: Annotated[
        float | None,
        typer.Option(help="Seconds an update takes one learner replica.", min=0.0, rich_help_panel=ROLLOUTS),
    ] = None,
    weight_sync: Annotated[
        float | None,
        typer.Option(help="Seconds until actors serve a new version.", min=0.0, rich_help_panel=ROLLOUTS),
    ] = None,
    reward_tail: Annotated[
        str | None, typer.Option(help="How long a reward takes, as for --rollout.", rich_help_panel=ROLLOUTS)
    ] = None,
    lag_wall: Annotated[
        float, typer.Option(help="Lag past which data is worth less.", min=0.0, rich_help_panel=ROLLOUTS)
    ] = LAG_WALL,
    freshness_penalty: Annotated[
        float,
        typer.Option(
            help="How much longer a step is for each version past it.", min=0.0, rich_help_panel=ROLLOUTS
        ),
    ] = PENALTY_PER_VERSION,
    actor_price: Annotated[float | None, typer.Option(help="One actor.", rich_help_panel=PRICES)] = None,
    environment_price: Annotated[
        float | None, typer.Option(help="One environment worker.", rich_help_panel=PRICES)
    ] = None,
    learner_price: Annotated[
        float | None, typer.Option(help="One learner replica.", rich_help_panel=PRICES)
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="Take what is not typed from the measurements of this run folder.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write an interactive page: one file, no network.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Say who binds in a platform of a given size, what it costs, the cheapest size, and whether asynchrony pays.

    For example `tidegate plan --actors 16 --actor-rate 1000 --learner-rate 12000 --batch 256`,
    `tidegate plan --actors 8 --rollout lognormal:2.0:1.0 --train 0.5`, or `tidegate plan --from-run DIR --actors 32`.
    """
    flags = Flags(
        actors=actors, actor_rate=actor_rate, learner_rate=learner_rate, update_rate=update_rate, batch=batch,
        replicas=replicas, speedup=speedup, environments=environments, environment_rate=environment_rate,
        store_rate=store_rate, max_lag=max_lag, after_s=after, target_rate=target_rate, rollout=rollout, slots=slots,
        group=group, train_s=train, weight_sync_s=weight_sync, reward_tail=reward_tail, lag_wall=lag_wall,
        freshness_penalty=freshness_penalty, actor_price=actor_price, environment_price=environment_price,
        learner_price=learner_price, from_run=from_run,
    )  # fmt: skip
    question, run = ask(flags)
    answer = work_out(question)
    if html is not None:
        write_page(html, question, answer)
    if json:
        sys.stdout.write(msgspec.json.encode(as_document(answer, run)).decode() + "\n")
    else:
        console = Console()
        console.print(render(answer, run), highlight=False)
        if html is not None:
            console.print(f"page: {html}", highlight=False, markup=False)


def as_document(answer: PlanAnswer, run: MeasuredRun | None) -> dict[str, Any]:
    """The answer for ``--json``; of what was measured everything but the thousands of draws."""
    document: dict[str, Any] = msgspec.to_builtins(answer)
    if run is None:
        return {**document, "measured": None}
    measured: dict[str, Any] = msgspec.to_builtins(run)
    del measured["rollout"]
    return {**document, "measured": {**measured, "rollout_mean_s": run.rollout.mean_s}}
