"""The page of ``tidegate sim --sweep --html``: a chart for each quantity, drawn and styled like a report's."""

from collections.abc import Callable, Mapping

from tidegate.cli.report.figures import line_chart
from tidegate.cli.report.page import plain_page
from tidegate.fleet.report import FleetReport
from tidegate.fleet.sweep import FleetSweep, crossovers

Curves = Mapping[str, Callable[[FleetReport], float]]
LAG: Curves = {"mean": lambda report: report.lag_mean, "95th percentile": lambda report: report.lag_p95}
ROUND: Curves = {
    "rollout": lambda report: report.round.rollout_s,
    "waiting for stragglers": lambda report: report.round.straggler_wait_s,
    "waiting for the learner": lambda report: report.round.learner_stall_s,
    "waiting for weights": lambda report: report.round.weights_wait_s,
}


def render_sweep(sweep: FleetSweep, *, title: str) -> str:
    """The whole page as HTML."""

    def both_modes(number: Callable[[FleetReport], float]) -> dict[str, list[tuple[float, float]]]:
        return {
            "synchronous": [(point.value, number(point.sync)) for point in sweep.points],
            "asynchronous": [(point.value, number(point.asynchronous)) for point in sweep.points],
        }

    lag = {
        name: [(point.value, of(point.asynchronous)) for point in sweep.points] for name, of in LAG.items()
    }
    stages = {name: [(point.value, of(point.sync)) for point in sweep.points] for name, of in ROUND.items()}
    bound = (sweep.lag_bound, "bound") if sweep.lag_bound is not None else None
    axis, values = sweep.setting, [point.value for point in sweep.points]
    charts = [
        (
            "Samples per second",
            "",
            line_chart("rate", both_modes(lambda report: report.samples_per_s), x_label=axis, at=values),
        ),
        (
            "Lag",
            "Versions, of asynchronous training.",
            line_chart("lag", lag, x_label=axis, at=values, limit=bound),
        ),
        ("One synchronous step", "Seconds.", line_chart("round", stages, x_label=axis, at=values)),
        (
            "Idle time of the learner",
            "Share of its time.",
            line_chart(
                "idle",
                both_modes(lambda report: report.learner_idle_ratio),
                x_label=axis,
                at=values,
                percent=True,
            ),
        ),
    ]
    return plain_page(title, " ".join(crossovers(sweep)), charts, table=_numbers(sweep))


def _numbers(sweep: FleetSweep) -> list[tuple[str, ...]]:
    head = (sweep.setting, "sync /s", "async /s", "lag mean", "lag p95", "lag max", "waste", "queue")
    return [
        head,
        *(
            (
                f"{point.value}",
                f"{point.sync.samples_per_s:,.1f}",
                f"{point.asynchronous.samples_per_s:,.1f}",
                f"{point.asynchronous.lag_mean:.2f}",
                f"{point.asynchronous.lag_p95}",
                f"{point.asynchronous.lag_max}",
                f"{point.asynchronous.waste_ratio:.1%}",
                f"{point.asynchronous.queue_mean:,.0f}",
            )
            for point in sweep.points
        ),
    ]
