"""The receipt of a run: what it trained, what that took, what it cost, and what was wasted for which reason."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidegate.core.prices import EXAMPLE_PRICES, MILLION, SECONDS_PER_HOUR, Prices, dollars
from tidegate.core.records import DropReason

PriceSource = Literal["run file", "examples", "option"]


class Usage(msgspec.Struct, frozen=True):
    """What all starts of a run took together.

    ``elapsed_s``: from the beginning of ``up`` to its end. ``cpu_s``: of all processes. ``gpu_s``: ``elapsed_s`` times
    the processes that computed on a GPU. A start that was killed outright is not counted.
    """

    starts: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0

    def with_start(self, *, elapsed_s: float, cpu_s: float, num_gpus: int) -> "Usage":
        """With one more start."""
        return Usage(
            starts=self.starts + 1,
            elapsed_s=self.elapsed_s + elapsed_s,
            cpu_s=self.cpu_s + cpu_s,
            gpu_s=self.gpu_s + elapsed_s * num_gpus,
        )


class EndedTotal(msgspec.Struct, frozen=True):
    """Trajectories that ended alike, and the steps or tokens in them."""

    trajectories: int = 0
    steps: int = 0


class Waste(msgspec.Struct, frozen=True):
    """What was dropped for one reason. ``share``: of the steps of everything that was trained or dropped."""

    reason: DropReason
    trajectories: int
    steps: int
    share: float


class Receipt(msgspec.Struct, frozen=True):
    """The answer of ``tidegate receipt``; its fields are the keys of ``--json``.

    ``unit``: of ``steps``: ``steps`` of an environment, or ``tokens`` of completions. ``wasted``: the most steps first.
    ``num_folded``: trajectories whose rows the ledger folded into counters, whose steps are in no reason.
    ``usd_per_h``: of the whole run; ``price``: where it is from. Dollars are None before anything was trained.
    ``usd_wasted``: the share of ``usd`` that went into what was dropped.
    """

    run_id: str
    unit: Literal["steps", "tokens"]
    steps: int
    trajectories: int
    wasted: tuple[Waste, ...]
    num_folded: int
    starts: int
    hours: float
    cpu_hours: float
    gpu_hours: float
    price: PriceSource
    usd_per_h: float
    usd: float
    usd_per_million: float | None
    usd_wasted: float

    @property
    def wasted_share(self) -> float:
        """Of the steps of everything that ended."""
        return sum(each.share for each in self.wasted)


def receipt_of(
    run_id: str,
    *,
    unit: Literal["steps", "tokens"],
    steps: int,
    trained: EndedTotal,
    dropped: Mapping[DropReason, EndedTotal],
    num_folded: int,
    usage: Usage,
    prices: Prices,
    replicas: Mapping[str, int],
    usd_per_h: float | None = None,
) -> Receipt:
    """Add up a run.

    ``steps``: trained ones since it began. ``usd_per_h``: a price of the whole run in place of ``prices``.
    """
    ended = trained.steps + sum(each.steps for each in dropped.values())
    wasted = [
        Waste(reason, each.trajectories, each.steps, each.steps / ended if ended else 0.0)
        for reason, each in dropped.items()
        if each.trajectories
    ]
    price: PriceSource = "option"
    if usd_per_h is None:
        price = "examples" if prices == EXAMPLE_PRICES else "run file"
        usd_per_h = prices.usd_per_h(
            num_actors=replicas.get("actor", 0),
            num_environments=replicas.get("environment", 0),
            num_learners=replicas.get("learner", 0),
        )
    hours = usage.elapsed_s / SECONDS_PER_HOUR
    usd = usd_per_h * hours
    return Receipt(
        run_id=run_id,
        unit=unit,
        steps=steps,
        trajectories=trained.trajectories,
        wasted=tuple(sorted(wasted, key=lambda each: (-each.steps, -each.trajectories))),
        num_folded=num_folded,
        starts=usage.starts,
        hours=hours,
        cpu_hours=usage.cpu_s / SECONDS_PER_HOUR,
        gpu_hours=usage.gpu_s / SECONDS_PER_HOUR,
        price=price,
        usd_per_h=usd_per_h,
        usd=usd,
        usd_per_million=usd / steps * MILLION if steps else None,
        usd_wasted=usd * sum(each.share for each in wasted),
    )


def lines_of_receipt(receipt: Receipt) -> list[tuple[str, str]]:
    """The receipt as (label, text), for people."""
    unit = receipt.unit
    time = f"{receipt.hours:,.3f} h in {receipt.starts} start{'s' if receipt.starts != 1 else ''}"
    gpus = f", {receipt.gpu_hours:,.3f} GPU-hours" if receipt.gpu_hours else ""
    rows = [
        ("trained", f"{receipt.steps:,} {unit}, {receipt.trajectories:,} trajectories"),
        ("took", f"{time}, {receipt.cpu_hours:,.3f} CPU-hours{gpus}"),
        ("cost", cost_line(receipt)),
    ]
    for each in receipt.wasted:
        rows.append(
            (
                f"dropped: {each.reason}",
                f"{each.trajectories:,} trajectories, {each.steps:,} {unit} ({each.share:.1%})",
            )
        )
    if receipt.wasted:
        rows.append(("wasted", f"{receipt.wasted_share:.1%} of the {unit}, {dollars(receipt.usd_wasted)}"))
    if receipt.num_folded:
        rows.append(
            ("note", f"{receipt.num_folded:,} trajectories were folded; their {unit} are in no line above")
        )
    return rows


def cost_line(receipt: Receipt) -> str:
    """What it cost, by which price."""
    sources = {
        "run file": "prices of the run file",
        "examples": "example prices: set `prices` in the run file",
        "option": "the price that was given",
    }
    each = (
        ""
        if receipt.usd_per_million is None
        else f", {dollars(receipt.usd_per_million)} a million {receipt.unit}"
    )
    return f"{dollars(receipt.usd)}{each} at {dollars(receipt.usd_per_h)} an hour ({sources[receipt.price]})"
