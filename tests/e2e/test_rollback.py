"""``tidegate rollback`` of a live run: it trains on from the checkpoint, also after a kill, and audits balance."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.conftest import START_TIMEOUT_S, Run
from tidegate.core.ids import PolicyVersion, parse_version

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(900),
]


def kept(run: Run) -> list[PolicyVersion]:
    """The versions that the run can go back to, oldest first."""
    return [parse_version(line) for line in run.tidegate("rollback").splitlines()[1:]]


def trains_after(run: Run, target: PolicyVersion, abandoned: list[str]) -> str:
    """Wait for updates of another lineage that begin at ``target``; returns its name."""

    def lines() -> list[dict[str, int | str]]:
        return [step for step in run.steps() if step["lineage"] not in abandoned]

    run.until(lambda: len(lines()) >= 5, timeout_s=START_TIMEOUT_S, what="training on another branch")
    assert lines()[0]["step"] == target.step + 1
    return str(lines()[0]["lineage"])


def test_a_run_goes_back_to_a_checkpoint_trains_on_from_it_and_balances(start: Callable[..., Run]) -> None:
    run = start(
        "runs/cartpole.yaml",
        *("--set", "learner.checkpoint_every_steps=5", "--set", "learner.keep_checkpoints=100"),
        *("--until", "version_step>=1000000", "--for", "800s"),
    )
    run.until_trains(30)
    pids = {name: process["pid"] for name, process in run.processes().items()}
    run.tidegate("pause", "--reason", "the reward collapsed")
    target = kept(run)[2]
    refused = run.tidegate("rollback", "--to", f"{target.lineage}@{target.step + 1}", exit_code=2)
    assert "No kept checkpoint holds version" in refused
    assert str(target) in refused
    answer = run.tidegate("rollback", "--to", str(target), "--reason", "collapsed", "--by", "ana")
    assert f"to {target}: training goes on from 1-" in answer
    run.tidegate("audit")  # exits 1 if it does not balance
    run.tidegate("resume")
    second = trains_after(run, target, [target.lineage])
    assert {name: process["pid"] for name, process in run.processes().items()} == pids
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    (event,) = [each for each in events if each["kind"] == "rolled_back"]
    assert (event["target"], event["reason"], event["by"]) == (str(target), "collapsed", "ana")

    # Without a pause, and killed at once: what the killed process trained since is recomputed, or never was.
    run.tidegate("rollback", "--to", str(target))
    run.kill("learner")
    steps = len(run.steps())
    run.until_trains(steps + 20)
    newest = run.steps()[-1]
    assert newest["lineage"] not in (target.lineage, second)
    assert kept(run)[2] == target
    assert not (run.folder / "learner" / "rollback.json").exists()
    run.tidegate("audit", "--verify")
