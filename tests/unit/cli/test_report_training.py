"""The curves of training in a report."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import LINEAGE, START_S, write_accounting, write_text_run
from tidegate.cli.report.data import read_run
from tidegate.cli.report.page import render_page
from tidegate.cli.report.plots import headline_plots
from tidegate.cli.report.training_plots import training_plots
from tidegate.runtime.run_event_log import RunEventLog


@pytest.mark.slow
def test_training_reward_is_not_called_a_share_of_held_out_problems(tmp_path: Path) -> None:
    write_text_run(tmp_path)
    titles = [plot.title for plot in headline_plots(read_run(tmp_path))]
    assert titles == [
        "Mean reward of each trained batch, over time",
        "Mean reward of each trained batch, over samples",
    ]
    event = {"kind": "evaluation", "version": f"{LINEAGE}@2", "solved_share": 0.4, "at_s": START_S + 2}
    RunEventLog(tmp_path).append(msgspec.json.encode(event))
    (first, _) = headline_plots(read_run(tmp_path))
    assert first.title == "Share of held-out problems solved, over time"


@pytest.mark.slow
def test_every_quantity_of_an_update_has_a_curve(tmp_path: Path) -> None:
    write_text_run(tmp_path)
    drawn = {plot.title: plot for plot in training_plots(read_run(tmp_path))}
    assert list(drawn) == [
        "Training reward",
        "Loss",
        "Entropy",
        "Effective samples and clipped share",
        "Divergence",
        "Mismatch by lag",
        "Importance ratio",
        "Gradient norm",
        "Learning rate",
        "Length of completions",
        "Completions without a signal",
        "my_own_figure",
    ]
    assert all(plot.svg.lstrip().startswith("<svg") for plot in drawn.values())
    by_lag = drawn["Mismatch by lag"].svg
    assert "lag 0" in by_lag
    assert "lag 1" in by_lag
    assert "lag 2-3" not in by_lag, "no token was that old"


@pytest.mark.slow
def test_several_environments_are_drawn_by_their_names(tmp_path: Path) -> None:
    several = ["workload.env=''", "workload.envs=[{env: arithmetic, weight: 2}, {env: sums, name: plus}]"]
    of_env = {"reward.arithmetic": 0.5, "share.arithmetic": 0.75, "reward.plus": 0.1, "share.plus": 0.25}
    write_text_run(tmp_path, overrides=several, metrics=of_env)
    event = {
        **{"kind": "evaluation", "version": f"{LINEAGE}@2", "at_s": START_S + 2, "solved_share": 0.4},
        **{"solved_share.arithmetic": 0.3, "solved_share.plus": 0.6},
    }
    RunEventLog(tmp_path).append(msgspec.json.encode(event))
    run = read_run(tmp_path)
    drawn = {plot.title: plot.svg for plot in training_plots(run)}
    for title in ("Training reward by environment", "Environments in each update"):
        assert "arithmetic" in drawn[title]
        assert "plus" in drawn[title]
    assert not set(drawn) & set(of_env), "each has one curve"
    (first, _) = headline_plots(run)
    assert "arithmetic" in first.svg
    assert "plus" in first.svg
    assert "arithmetic + plus" in render_page(run)


@pytest.mark.slow
def test_a_classic_run_has_the_curves_of_what_it_measured(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    run = read_run(tmp_path)
    assert [plot.title for plot in training_plots(run)] == ["Loss", "Effective samples and clipped share"]
    assert "Flow and lag" in render_page(run)
