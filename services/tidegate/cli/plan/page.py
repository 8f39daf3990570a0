"""The plan as one interactive HTML page with formulas, charts and styles inside; it fetches nothing."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.plan import answer as answers
from tidegate.cli.plan.answer import PlanAnswer, PlanQuestion
from tidegate.cli.plan.javascript import translate
from tidegate.core import distributions, prices
from tidegate.core.distributions import Durations, Histogram, histogram_of
from tidegate.core.errors import ConfigError
from tidegate.core.planner import rebalance, rollout, scaling, stages, tails
from tidegate.core.planner.rollout import RolloutLoop

HERE = Path(__file__).parent
SHARED_STYLE = HERE.parent / "report" / "style.css"
# Enough quantiles for the mean of a tail within a thousandth; a page with every draw of a long run would not open.
QUANTILES = 1024
# Parts of the planner that model.js and the sliders use.
ROOTS = (
    "work_out", "PlanQuestion", "Loop", "Prices", "RolloutLoop", "Fixed", "Exponential", "Lognormal", "Histogram",
    "SPEEDUP_MIN", "capacities", "replicas_max", "speedup", "throughput", "usd_per_h", "usd_per_million",
)  # fmt: skip


def write_page(path: Path, question: PlanQuestion, answer: PlanAnswer) -> None:
    """Write the page.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_text(render_page(question, answer), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path} cannot be written", why=error.strerror or str(error)) from error


def render_page(question: PlanQuestion, answer: PlanAnswer) -> str:
    """The whole page; it contains ``answer``, so that it can report if its own formulas disagree."""
    data = {"question": as_data(question), "answer": msgspec.to_builtins(answer)}
    # In a script element only `</` could end the data early.
    encoded = msgspec.json.encode(data).decode().replace("</", "<\\/")
    page = _read("page.html")
    for mark, text in (
        ("/* style */", SHARED_STYLE.read_text(encoding="utf-8") + _read("page.css")),
        ("/* model */", model_script()),
        ("/* draw */", _read("page.js")),
        ('"data"', encoded),
    ):
        page = page.replace(mark, text)
    return page


def model_script() -> str:
    """The planner's formulas in JavaScript, translated from core/planner, behind the names that the page uses."""
    modules = (distributions, prices, scaling, stages, tails, rebalance, rollout, answers)
    return "\n".join((_read("runtime.js"), translate(modules, ROOTS), _read("model.js")))


def as_data(question: PlanQuestion) -> dict[str, Any]:
    """A question in the form of the page's formulas."""
    rollouts = question.rollouts
    return {**msgspec.to_builtins(question), "rollouts": _rollouts(rollouts) if rollouts else None}


def _rollouts(rollouts: RolloutLoop) -> dict[str, Any]:
    reward = _thinned(rollouts.reward) if rollouts.reward else None
    return msgspec.to_builtins(
        msgspec.structs.replace(rollouts, rollout=_thinned(rollouts.rollout), reward=reward)
    )


def _thinned(durations: Durations) -> Durations:
    if not isinstance(durations, Histogram) or len(durations.counts) <= 2 * QUANTILES:
        return durations
    total = sum(durations.counts)
    quantiles: list[float] = []
    seen = 0.0
    for (lower, upper), count in zip(pairwise(durations.edges_s), durations.counts, strict=True):
        while count > 0.0 and (wanted := (len(quantiles) + 0.5) / QUANTILES * total) < seen + count:
            quantiles.append(lower + (upper - lower) * (wanted - seen) / count)
        seen += count
    return histogram_of(quantiles)


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
