"""Recording rules and burn-rate alerts of every objective of the catalogue, in Sloth's naming.

Admission evaluates the objectives and counts good and bad observations; the rules only divide. The target comes from
the run (``tidegate.slo.target``), so each run is alerted by its own objectives. Windows and factors are shares of a
short period: a share of the budget within a share of the period (SRE workbook, ch. 5; a service has 30 days, a training
run has one).
"""

from typing import Any

import msgspec

from tidegate.catalogue import telemetry as names
from tidegate.core.slo import ALERT_BAD_MIN, BURN_MAX
from tidegate.core.slo_catalogue import SlosConfig
from tools.monitoring.prometheus_names import label, metric

Rule = dict[str, Any]

SLO_NAMES: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(SlosConfig))
RUN = label(names.ATTR_RUN)
NAMESPACE = label(names.ATTR_NAMESPACE)
# A run id is unique within a namespace only, so rules never aggregate by less.
OF_RUN = f"{NAMESPACE}, {RUN}"
# Every run. The chart replaces it by one namespace and run where `rules.scope` is `release`.
SCOPE = f'{RUN}=~".+"'
# A target of 1 leaves no budget; this avoids a division by zero.
BUDGET_MIN = 1e-9


class BurnWindow(msgspec.Struct, frozen=True):
    """An alert fires when both windows burn at ``factor``: the long one for the budget, the short one for now."""

    severity: str
    factor: float
    long_share: float
    short_share: float


# Shares of the period: 10 % of the budget in 1/48 of it, 25 % in 1/12, 50 % in a third. At the lowest target that a
# run file may declare (0.7) a budget of 0.3 lets factors up to 3.3 fire; 4.8 fires for targets above 0.8.
BURN_WINDOWS = (
    BurnWindow("page", 4.8, 1 / 48, 1 / 480),
    BurnWindow("page", 3.0, 1 / 12, 1 / 144),
    BurnWindow("ticket", 1.5, 1 / 3, 1 / 36),
)


class Period(msgspec.Struct, frozen=True):
    """The period of the error budgets, and the shortest window that contains a few samples, in seconds."""

    period_s: float
    window_min_s: float

    def window(self, share: float) -> str:
        """A share of the period as a PromQL duration."""
        return duration(max(self.period_s * share, self.window_min_s))


def selected(name: str, *conditions: str) -> str:
    """Series of a metric of the catalogue in the scope of the rules."""
    return f"{metric(name)}{{{','.join((SCOPE, *conditions))}}}"


def recorded(record: str, slo: str) -> str:
    """A recorded series of one objective in the scope of the rules."""
    return f'{record}{{{SCOPE},sloth_slo="{slo}"}}'


def of_slo(slo: str) -> str:
    """The condition on the label of an objective's metrics."""
    return f'{label(names.ATTR_SLO)}="{slo}"'


def duration(seconds: float) -> str:
    """Whole hours, minutes or seconds, the largest that is exact."""
    whole = round(seconds)
    for size, unit in ((3600, "h"), (60, "m")):
        if whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def alert_name(slo: str) -> str:
    """``lag_p95`` is alerted by ``TidegateLagP95Burn``."""
    return "Tidegate" + "".join(word.capitalize() for word in slo.removesuffix("_s").split("_")) + "Burn"


def recording_rules(slo: str, period: Period) -> list[Rule]:
    """Error ratio over each window; objective, budget, budget left and burn rate."""
    labels = {"sloth_id": f"tidegate-{slo}", "sloth_service": "tidegate", "sloth_slo": slo}
    shares = sorted({share for each in BURN_WINDOWS for share in (each.short_share, each.long_share)} | {1.0})
    windows = list(dict.fromkeys(period.window(share) for share in shares))
    rules: list[Rule] = [
        {
            "record": f"slo:sli_error:ratio_rate{window}",
            "expr": error_ratio(slo, window),
            "labels": {**labels, "sloth_window": window},
        }
        for window in windows
    ]
    target = f"max by ({OF_RUN}) ({selected(names.METRIC_SLO_TARGET, of_slo(slo))})"
    seen = f"max by ({OF_RUN}) ({selected(names.METRIC_SLO_COVERAGE, of_slo(slo))})"
    shortest, whole = windows[0], windows[-1]
    budget = recorded("slo:error_budget:ratio", slo)
    errors = {
        window: f"max by ({OF_RUN}) ({recorded(f'slo:sli_error:ratio_rate{window}', slo)})"
        for window in (shortest, whole)
    }
    burn = {
        "slo:current_burn_rate:ratio": errors[shortest],
        "slo:period_burn_rate:ratio": errors[whole],
    }
    rules += [
        {"record": "slo:objective:ratio", "expr": target, "labels": labels},
        {
            "record": "slo:error_budget:ratio",
            "expr": f"clamp_min(1 - {target}, {BUDGET_MIN})",
            "labels": labels,
        },
        {
            "record": "slo:time_period:days",
            # By run as every other series: two releases that record it do not record the same series.
            "expr": f"0 * {target} + {period.period_s / 86400:.6g}",
            "labels": labels,
        },
        *(
            {
                "record": record,
                "expr": f"clamp_max({ratio} / on ({OF_RUN}) {budget}, {BURN_MAX:g})",
                "labels": labels,
            }
            for record, ratio in burn.items()
        ),
        {
            "record": "slo:period_error_budget_remaining:ratio",
            "expr": f"1 - {recorded('slo:period_burn_rate:ratio', slo)}",
            "labels": labels,
        },
        {
            # As `tidegate slo` reports it: unobserved time counts as good, so the first bad second of a run does not
            # spend the budget.
            "record": "tidegate:slo_budget_left:ratio",
            "expr": f"1 - clamp_max({errors[whole]} / on ({OF_RUN}) {budget} * on ({OF_RUN}) {seen}, {BURN_MAX:g})",
            "labels": labels,
        },
    ]
    return rules


def error_ratio(slo: str, window: str) -> str:
    """Share of bad observations over a window; no series where there was no observation."""
    every = selected(names.METRIC_SLO_EVENTS, of_slo(slo))
    return (
        f"sum by ({OF_RUN}) (rate({_bad(slo)}[{window}])) / (sum by ({OF_RUN}) (rate({every}[{window}])) > 0)"
    )


def _bad(slo: str) -> str:
    return selected(names.METRIC_SLO_EVENTS, of_slo(slo), f'{label(names.ATTR_SLO_RESULT)}="bad"')


def alert_expressions(slo: str, period: Period) -> dict[str, str]:
    """Alert expressions by severity: both windows of a pair, and a minimum of bad observations."""
    found: dict[str, list[str]] = {}
    for each in BURN_WINDOWS:
        long, short = period.window(each.long_share), period.window(each.short_share)
        budget = recorded("slo:error_budget:ratio", slo)
        threshold = f"on ({OF_RUN}) group_left () {each.factor:g} * {budget}"
        in_short, in_long = (recorded(f"slo:sli_error:ratio_rate{window}", slo) for window in (short, long))
        found.setdefault(each.severity, []).append(
            f"(max by ({OF_RUN}) ({in_short} > {threshold})\n"
            f"and max by ({OF_RUN}) ({in_long} > {threshold})\n"
            f"and sum by ({OF_RUN}) (increase({_bad(slo)}[{long}])) > {ALERT_BAD_MIN - 0.5:g})"
        )
    return {severity: "\nor\n".join(parts) for severity, parts in found.items()}
