"""The charts of a report: each a title, a caption that explains how to read it, and an SVG."""

import math
from collections.abc import Callable, Mapping

from tidegate.cli.report.data import Points, RunData
from tidegate.cli.report.figures import bar_chart, line_chart, stacked_chart
from tidegate.cli.report.plot import Plot
from tidegate.core.targets import TargetCondition, parse_target

SECONDS = "seconds since the first admission"
VERSION = "policy version"
# Lags of more versions share bars; a budget this often beyond the largest lag is named, and not drawn.
LAG_BARS_MAX = 64
FAR_BUDGET = 4
HEADLINES = {
    "mean_return": "Mean return of the last 100 episodes",
    "evaluation_return": "Mean return of greedy episodes",
    "solved_share": "Share of held-out problems solved",
    "mean_reward": "Mean reward of each trained batch",
}


def headline_plots(run: RunData) -> list[Plot]:
    """The run's score, over time and over samples."""
    return [_return_over_time(run), _return_over_samples(run)]


def flow_plots(run: RunData) -> list[Plot]:
    """Lag, queues, rates, waiting and drops, in the order of the page."""
    return [make(run) for make in _FLOW]


def _headline(run: RunData) -> tuple[str, TargetCondition | None]:
    conditions = parse_target(run.target()).conditions
    name = conditions[0].name if conditions else ""
    if name not in HEADLINES:
        name = "mean_return" if run.plan.file.workload.kind == "segments" else "solved_share"
    if name == "solved_share" and not run.evaluations(name):
        # Nothing was evaluated: the reward of training is another quantity, under its own name.
        name = "mean_reward"
    return name, next((condition for condition in conditions if condition.name == name), None)


def _headline_series(run: RunData, name: str, *, over: str) -> dict[str, Points]:
    """The headline, and of segments the return while exploring beside that of evaluations; only what there is."""
    if name == "solved_share":
        envs = run.plan.file.workload.mixture
        of_env = {env: run.evaluations(f"{name}.{env}", over=over) for env in envs}
        found = {name: run.evaluations(name, over=over), **of_env}
    elif name == "mean_reward":
        found = {name: run.step_series(name, over=over)}
    else:
        found = {
            "mean_return": run.step_series("mean_return", over=over),
            "evaluation_return": run.evaluations("mean_return", over=over),
        }
    first = {name: found.get(name, [])}
    return {each: points for each, points in (first | found).items() if points}


def _unit(run: RunData) -> str:
    return "environment steps" if run.plan.file.workload.kind == "segments" else "tokens"


def _return_over(run: RunData, *, over: str, label: str, key: str) -> Plot:
    name, target = _headline(run)
    series = _headline_series(run, name, over=over)
    limit = (target.threshold, f"target {target.threshold:g}") if target is not None else None
    svg = line_chart(key, series, x_label=label, limit=limit, fill=True) if series else ""
    over_what = "time" if over == "at_s" else "samples"
    return Plot(f"{HEADLINES[name]}, over {over_what}", "The score that staleness must not reduce.", svg)


def _return_over_time(run: RunData) -> Plot:
    return _return_over(run, over="at_s", label=SECONDS, key="return-time")


def _return_over_samples(run: RunData) -> Plot:
    return _return_over(run, over="env_steps", label=f"{_unit(run)} trained", key="return-samples")


def _lag_histogram(run: RunData) -> Plot:
    budget = run.plan.file.staleness.max_lag
    by_lag = run.accounting.ledger.trained_by_lag if run.accounting is not None else {}
    counts, limit_after = lag_bars(by_lag, budget=budget)
    svg = (
        bar_chart("lag-histogram", counts, x_label="versions behind at consumption", limit_after=limit_after)
        if counts
        else ""
    )
    shown = "the dashed line is the budget" if limit_after is not None else "far from the budget"
    return Plot(
        "Lag of trained trajectories",
        f"Trajectories by lag, with replay at their first use; {shown}, max_lag {budget}.",
        svg,
    )


def lag_bars(by_lag: Mapping[int, int], *, budget: int) -> tuple[dict[str, float], int | None]:
    """Trajectories by lag, at most ``LAG_BARS_MAX`` bars of equal width, and the bars inside the budget.

    None where the budget is far beyond every lag: replay's may be millions, and would leave one bar to see.
    """
    if not by_lag:
        return {}, None
    highest = max(by_lag)
    is_near = _is_near(budget, highest)
    width = math.ceil((max(highest, budget if is_near else 0) + 1) / LAG_BARS_MAX)
    num_bars = max(highest, budget if is_near else 0) // width + 1
    counts = [0.0] * num_bars
    for lag, count in by_lag.items():
        counts[lag // width] += count
    names = [
        str(first) if width == 1 else f"{first}-{first + width - 1}"
        for first in range(0, num_bars * width, width)
    ]
    return dict(zip(names, counts, strict=True)), budget // width + 1 if is_near else None


def _is_near(budget: int, highest: float) -> bool:
    return budget <= max(LAG_BARS_MAX, FAR_BUDGET * highest)


def _lag_sawtooth(run: RunData) -> Plot:
    budget = run.plan.file.staleness.max_lag
    series = {
        "highest": run.step_series("lag_max", over="step"),
        "mean": run.step_series("lag_mean", over="step"),
    }
    highest = max((lag for _, lag in series["highest"]), default=0.0)
    svg = (
        line_chart(
            "lag-steps",
            series,
            x_label=VERSION,
            limit=(budget, f"max_lag {budget}") if _is_near(budget, highest) else None,
            steps=True,
        )
        if series["highest"]
        else ""
    )
    return Plot(
        "Lag of each batch",
        "Rises while the learner works off queued trajectories, falls when fresh ones arrive.",
        svg,
    )


def _depths(run: RunData) -> Plot:
    depths = run.flow.depths
    svg = stacked_chart("depths", depths, x_label=SECONDS) if depths else ""
    return Plot(
        "Queues between the stages",
        "Trajectories by stage; admission bounds their sum.",
        svg,
    )


def _throughput(run: RunData) -> Plot:
    series = {
        name: run.flow.rates[name] for name in ("admitted", "stored", "ended") if name in run.flow.rates
    }
    svg = line_chart("throughput", series, x_label=SECONDS) if series else ""
    return Plot(
        "Throughput of each stage", "Trajectories per second; in steady state the lines coincide.", svg
    )


def _steps_rate(run: RunData) -> Plot:
    points = run.flow.rates.get("trained steps", [])
    svg = line_chart("steps-rate", {"steps": points}, x_label=SECONDS, fill=True) if points else ""
    return Plot(f"{_unit(run).capitalize()} trained per second", "Throughput of the whole platform.", svg)


def _idle(run: RunData) -> Plot:
    names = {"learner": "learner_idle_ratio", "actors": "actor_wait_task_ratio"}
    series = {name: run.sample_series(statistic, while_working=True) for name, statistic in names.items()}
    series = {name: points for name, points in series.items() if points}
    svg = line_chart("idle", series, x_label=SECONDS, percent=True) if series else ""
    return Plot("Idle share", "Share of their own time, over ten seconds; the bottleneck is never idle.", svg)


def _stages(run: RunData) -> Plot:
    svg = (
        stacked_chart("stages", run.flow.stages_s, x_label=SECONDS) if any(run.flow.stages_s.values()) else ""
    )
    return Plot(
        "Time from rollout to gradient",
        "Mean seconds of a trajectory in each stage, by the time of its training.",
        svg,
    )


def _drops(run: RunData) -> Plot:
    dropped = run.accounting.audit.dropped if run.accounting is not None else {}
    counts = {
        reason: float(count) for reason, count in sorted(dropped.items(), key=lambda item: -item[1]) if count
    }
    svg = bar_chart("drops", counts, x_label="reason", colors=True) if counts else ""
    caption = "Trajectories that were admitted and never trained." if counts else "Nothing was dropped."
    return Plot("Drops by reason", caption, svg)


_FLOW: tuple[Callable[[RunData], Plot], ...] = (
    _lag_histogram,
    _lag_sawtooth,
    _depths,
    _throughput,
    _steps_rate,
    _idle,
    _stages,
    _drops,
)
