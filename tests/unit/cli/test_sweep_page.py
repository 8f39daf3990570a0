from html.parser import HTMLParser

import pytest

from tidegate.cli.sim.fleet import plan_of
from tidegate.cli.sim.options import FleetOptions
from tidegate.cli.sim.sweep_page import render_sweep
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import Mode
from tidegate.fleet.sweep import parse_axis, run_sweep, with_setting


@pytest.mark.slow
def test_page_is_whole_and_fetches_nothing() -> None:
    plan, axis = plan_of(FleetOptions(), seed=0), parse_axis("actors=2..8")

    def make_plan(value: int, mode: Mode) -> FleetPlan:
        return with_setting(plan, axis.setting, value, mode=mode, batch_size=1, max_lag=None)

    found = run_sweep(axis, make_plan, horizon_s=20, lag_bound=3)
    text = render_sweep(found, title="A <sweep>")
    opened: list[str] = []
    addresses: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            opened.append(tag)
            addresses.extend(value or "" for name, value in attrs if name in ("src", "href", "xlink:href"))

    Reader().feed(text)
    assert opened.count("svg") == 4
    assert opened.count("tr") == 1 + len(found.points)
    assert all(address.startswith("#") for address in addresses), "parts of the same page only"
    assert "A &lt;sweep&gt;" in text
