"""One grammar of durations: the same text is the same distribution in a run file, in ``plan`` and in ``sim``."""

from pathlib import Path

import pytest

from tidegate.cli.durations import read_durations
from tidegate.cli.plan.options import BalanceOptions, RolloutOptions
from tidegate.cli.plan.question import PlanFlags, ask
from tidegate.cli.sim.fleet import plan_of
from tidegate.cli.sim.options import FleetOptions
from tidegate.core.distributions import Durations, Exponential, Fixed, Histogram, Lognormal, histogram_of
from tidegate.core.errors import ConfigError
from tidegate.environment.config import times_of
from tidegate.runtime.config import OTHER_BIN, WorkloadConfig


def in_run_file(text: str) -> Durations:
    workload = WorkloadConfig(env="arithmetic", kind="text", latency=text)
    assert times_of(text) == workload.latency_by_bin()[OTHER_BIN]
    return times_of(text)


def in_plan(text: str) -> Durations:
    question, _ = ask(PlanFlags(BalanceOptions(actors=1, learner_rate=1.0), RolloutOptions(rollout=text)))
    assert question.rollouts is not None
    return question.rollouts.rollout


def in_sim(text: str) -> Durations:
    return plan_of(FleetOptions(rollout=text), seed=0).rollout


READERS = [in_run_file, in_plan, in_sim]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("text", "durations"),
    [
        ("fixed:0.5", Fixed(0.5)),
        ("3", Fixed(3.0)),
        ("250ms", Fixed(0.25)),
        ("fixed:90s", Fixed(90.0)),
        ("exp:0.040", Exponential(0.04)),
        ("exp:5m", Exponential(300.0)),
        ("lognormal:2.0:1.5", Lognormal(2.0, 1.5)),
    ],
)
def test_one_text_is_one_distribution_everywhere(read: object, text: str, durations: Durations) -> None:
    assert callable(read)
    assert read(text) == durations


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "exp:",
        "exp:a",
        "exp:-1",
        "exp:0",
        "lognormal:1",
        "lognormal:1:0",
        "lognormal:1:2:3",
        "const:0.5",
        "a.txt",
    ],
)
def test_what_is_no_distribution_is_refused_everywhere_with_the_grammar(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(ConfigError, match="write fixed:S, exp:MEAN"):
        read(text)


def test_only_plan_and_sim_read_files(tmp_path: Path) -> None:
    path = tmp_path / "seconds.txt"
    path.write_text("0.3\n\n0.1\n", encoding="utf-8")
    assert in_plan(f"hist:{path}") == in_sim(f"hist:{path}") == histogram_of([0.1, 0.3])
    with pytest.raises(ConfigError, match="a run file travels without other files"):
        in_run_file(f"hist:{path}")


def test_histogram_file_is_read_as_bins(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    path.write_text('{"edges_s": [0, 1, 3], "counts": [3, 1]}', encoding="utf-8")
    found = read_durations(f"hist:{path}", option="--rollout")
    assert found == Histogram(edges_s=(0.0, 1.0, 3.0), counts=(3.0, 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.3\nslow\n",
        "[]",
        '{"edges_s": [0, 1], "counts": [0]}',
        '{"edges_s": [1, 0], "counts": [1]}',
        '{"edges_s": [0], "counts": []}',
    ],
)
def test_file_without_durations_is_refused_with_its_option(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="--rollout: "):
        read_durations(f"hist:{path}", option="--rollout")


def test_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="/nowhere cannot be read"):
        read_durations("hist:/nowhere", option="--rollout")
