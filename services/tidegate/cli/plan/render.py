"""A plan in the terminal: bottleneck, cost, the cheapest size, and synchronous against asynchronous rollouts."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.plan.answer import PlanAnswer
from tidegate.cli.plan.measured import RunMeasurements
from tidegate.core.planner.rollout import RolloutPlan
from tidegate.core.planner.stages import Balance, Stage
from tidegate.core.planner.tails import Tail
from tidegate.core.prices import dollars

BAR_CELLS = 20
MUTED = "bright_black"
BOUND_BY = {"actors": "bound by actors", "learner": "bound by the learner", "admission": "bound by max_lag"}


def render(answer: PlanAnswer, run: RunMeasurements | None) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = []
    if run is not None:
        parts += [_measured(run), Text()]
    parts += [_stages(answer.balance), Text(), _numbers(answer), Text(), _replicas(answer)]
    if answer.rollouts is not None:
        parts += [Text(), _steps(answer.rollouts), Text(), _tail(answer.rollouts.tail)]
    parts += [Text(), Text(answer.sentence, style="bold")]
    if answer.rollouts is not None:
        parts.append(Text(answer.rollouts.recommendation, style="bold"))
    return Group(*parts)


def table(title: str, *columns: str) -> Table:
    """A table without lines: the first column is text, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", header_style=MUTED)
    return made


def _measured(run: RunMeasurements) -> RenderableType:
    lengths = run.lengths
    spread = f"p50 {lengths.p50:,.0f}, p95 {lengths.p95:,.0f}, p99 {lengths.p99:,.0f}, max {lengths.max:,.0f}"
    return Text(
        f"measured in {run.run_id} over {run.seconds:,.0f} s: {run.throughput_per_s:,.1f} trajectories/s at a mean lag"
        f" of {run.lag_mean:.1f}; rollouts take {_seconds(run.rollout.mean_s)} in the mean and have"
        f" {lengths.mean:,.0f} steps or tokens ({spread})",
        style=MUTED,
    )


def _stages(balance: Balance) -> Table:
    rows = table("bottleneck", "stage", "count", "could do", "used", "")
    for stage in balance.stages:
        rows.add_row(
            stage.name,
            f"{stage.count:,}",
            f"{_rate(stage.capacity_per_s)}/s",
            f"{stage.utilisation:.0%}",
            _bar(stage),
        )
    return rows


def _bar(stage: Stage) -> Text:
    filled = round(stage.utilisation * BAR_CELLS)
    style = "yellow" if stage.utilisation >= 0.98 else "green"
    return Text("█" * filled, style=style) + Text("░" * (BAR_CELLS - filled), style=MUTED)


def _numbers(answer: PlanAnswer) -> Table:
    balance = answer.balance
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style=MUTED)
    rows.add_column()
    rows.add_row(
        "throughput", f"{_rate(balance.throughput_per_s)} samples/s, {balance.updates_per_s:,.1f} updates/s"
    )
    rows.add_row(
        "replay ratio",
        f"{balance.replay_ratio:.2f} (capacity of the learner over capacity of the actors)",
    )
    without, with_it = balance.unbounded, balance.bounded
    if without.queue > 0.0:
        after = f"after {balance.after_s:,.0f} s"
        rows.add_row(
            "without admission",
            f"{after}: {without.queue:,.0f} samples queued, {without.lag_updates:,.1f} updates behind;"
            f" the budget lasts {_seconds(balance.budget_lasts_s or 0.0)}",
        )
        rows.add_row(
            "with admission",
            f"at most {with_it.queue:,.0f} queued, lag at most {with_it.lag_updates:,.0f}; actors wait instead",
        )
    else:
        rows.add_row("queue and lag", "stable: the learner keeps up with the actors")
    rows.add_row(
        "cost",
        f"{dollars(balance.usd_per_h)} per hour, {dollars(balance.usd_per_million)} per million samples",
    )
    return rows


def _replicas(answer: PlanAnswer) -> Table:
    note = (
        f"the learner is the bottleneck below {answer.learner_free_at}"
        if answer.learner_free_at and answer.learner_free_at > 1
        else ("one suffices" if answer.learner_free_at else "the learner is the bottleneck at any number")
    )
    rows = table(
        f"learner replicas ({note})", "replicas", "speedup", "learner", "loop", "bottleneck", "$ per million"
    )
    for row in answer.replicas:
        here = "bold" if row.replicas == answer.loop.num_replicas else ""
        rows.add_row(
            str(row.replicas),
            f"{row.speedup:.2f}×",
            f"{_rate(row.learner_per_s)}/s",
            f"{_rate(row.throughput_per_s)}/s",
            row.bottleneck,
            dollars(row.usd_per_million),
            style=here,
        )
    return rows


def _steps(plan: RolloutPlan) -> Table:
    sync, free = plan.synchronous, plan.asynchronous
    rows = table(f"one step ({plan.speedup:.2f}× with asynchrony)", "", "synchronous", "asynchronous")
    seconds = [
        ("rollouts, mean work of a slot", sync.work_s, None),
        ("  wait for the slowest", sync.straggler_wait_s, None),
        ("rewards", sync.reward_tail_s, None),
        ("training (actors stall)", sync.learner_stall_s, None),
        ("weights", sync.weight_sync_s, None),
        ("wall", sync.wall_s, free.wall_s),
    ]
    for name, synchronous_s, asynchronous_s in seconds:
        rows.add_row(
            name,
            _seconds(synchronous_s),
            _seconds(asynchronous_s) if asynchronous_s is not None else "overlapped",
        )
    rows.add_row("  with the freshness penalty", "", _seconds(free.effective_wall_s))
    rows.add_row(
        "samples/s", _rate(sync.samples_per_s), f"{_rate(free.samples_per_s)} ({BOUND_BY[free.bound_by]})"
    )
    rows.add_row("actors idle", f"{sync.actor_idle_ratio:.0%}", f"{free.actor_idle_ratio:.0%}")
    rows.add_row("learner idle", f"{sync.learner_idle_ratio:.0%}", f"{free.learner_idle_ratio:.0%}")
    natural = "grows without bound" if free.natural_lag is None else f"{free.natural_lag:.1f}"
    rows.add_row("mean lag", "0", f"{free.lag_mean:.1f} ({natural} without a budget)")
    return rows


def _tail(tail: Tail) -> Table:
    rows = table(f"the slowest of {tail.num_draws}", "", "seconds", "error")
    rows.add_row("mean of one", _seconds(tail.mean_s), "")
    rows.add_row("mean of the slowest", _seconds(tail.max_s), "exact")
    for name, value_s, error in (
        ("extreme value, leading term", tail.leading_s, tail.leading_error),
        ("extreme value, Gumbel", tail.gumbel_s, tail.gumbel_error),
    ):
        if value_s is not None and error is not None:
            rows.add_row(name, _seconds(value_s), f"{error:+.1%}")
    return rows


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1.0 else f"{seconds:,.2f} s"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100.0 else f"{per_s:,.1f}"
