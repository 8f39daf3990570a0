"""The staleness budget of a live run is raised, lowered and rolled back: no process restarts, every audit balances."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.conftest import START_TIMEOUT_S, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_budget_is_raised_lowered_and_rolled_back_under_load_without_a_restart(
    start: Callable[..., Run],
) -> None:
    run = start(
        "runs/cartpole.yaml",
        *("--set", "staleness.max_lag=2", "--until", "version_step>=1000000", "--for", "800s"),
    )
    run.until_trains(5)
    pids = {name: process["pid"] for name, process in run.processes().items()}

    def in_force(max_lag: int) -> bool:
        values = run.status()["values"]
        return values["max_lag"] == values["budget_max_lag"] == max_lag

    for before, after in ((2, 6), (6, 1), (1, 2)):
        answer = run.tidegate("set", f"staleness.max_lag={after}")
        assert f"staleness.max_lag: {before} -> {after}" in answer
        run.until(lambda now=after: in_force(now), timeout_s=START_TIMEOUT_S, what=f"max_lag {after}")
        steps = len(run.steps())
        run.until_trains(steps + 20)
        run.tidegate("audit")  # exits 1 if it does not balance
        lags = [step["lag_max"] for step in run.steps()[steps + 2 :]]
        assert max(lags) <= after
    assert {name: process["pid"] for name, process in run.processes().items()} == pids

    refused = run.tidegate("set", "batch_size=4096", exit_code=2)
    assert "`batch_size` cannot change while the run works" in refused
    refused = run.tidegate("set", "staleness.max_lag=-1", exit_code=2)
    assert "max_lag" in refused
    # A damaged file is refused by the services, and the budget before it stays.
    good = (run.folder / "run.json").read_text()
    record = json.loads(good)
    record["run_file"]["staleness"]["max_lag"] = "four"
    (run.folder / "run.json").write_text(json.dumps(record))
    run.until(
        lambda: "settings_refused" in (run.folder / "logs" / "admission.log").read_text(),
        timeout_s=START_TIMEOUT_S,
        what="a refusal",
    )
    (run.folder / "run.json").write_text(good)
    assert in_force(2)
    steps = len(run.steps())
    run.until_trains(steps + 5)
    assert {name: process["pid"] for name, process in run.processes().items()} == pids
