"""A run of several environments, one of them of the user's own, while its task queue dies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import START_TIMEOUT_S, Run
from tests.e2e.killing import assert_accounting_balances, kill_and_recover
from tidegate.core.ids import RunId
from tidegate.task_queue.journal import open_journal

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(900)]

MAX_LAG = 4
TASK = """
class Reverse:
    def problems(self):
        return [(f"{number:03}=", f"{number:03}"[::-1]) for number in range(500)]

    def score(self, problem, completion):
        return float(completion == problem.answer)
"""
RUN = f"""
run: several
workload:
  kind: text
  envs:
    - {{env: arithmetic, weight: 2}}
    - {{env: "my_task.py:Reverse", name: reverse, weight: 1}}
    - {{env: countdown, weight: 0}}
  num_samples: 8
  sampler: {{max_new_tokens: 14}}
policy: {{kind: char_lm, context_length: 48}}
batch_size: 64
staleness: {{max_lag: {MAX_LAG}}}
task_queue: {{evaluation_every_versions: 2}}
actor: {{evaluation_problems_max: 96}}
learner: {{warmup: {{stop_at_solved: 0.1}}}}
"""


def test_shares_and_results_by_name_survive_the_death_of_the_task_queue(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "run.yaml").write_text(RUN)
    run = start(str(tmp_path / "run.yaml"), "--for", "600s", "--until", "trained_trajectories_total>=5000")
    run.until_trains(4)
    kill_and_recover(run, "task_queue")
    _, summary = run.wait(timeout_s=2 * START_TIMEOUT_S)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)

    record = json.loads((run.folder / "run.json").read_text())
    journal = open_journal(run.folder / "task_queue" / "journal.sqlite", run_id=RunId(record["run_id"]))
    drawn = journal.curriculum
    journal.close()
    assert drawn.num_drawn >= 500
    # A share is off by less than 4 prompts over any stretch of this length, also across a kill.
    assert abs(drawn.envs["arithmetic"].num_drawn - drawn.num_drawn * 2 / 3) < 4.0
    assert drawn.envs["reverse"].num_drawn == drawn.num_drawn - drawn.envs["arithmetic"].num_drawn
    steps = run.steps()
    assert {"share.arithmetic", "share.reverse", "reward.arithmetic"} <= {
        name for step in steps for name in step["metrics"]
    }
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    evaluated = [event for event in events if event["kind"] == "evaluation"]
    assert evaluated, "no version was evaluated"
    for event in evaluated:
        # Of 96 problems that take turns, as many of each.
        assert [event[f"num_problems.{name}"] for name in ("arithmetic", "reverse", "countdown")] == [32] * 3
        parts = (2 * event["solved_share.arithmetic"] + event["solved_share.reverse"]) / 3
        assert event["solved_share"] == pytest.approx(parts)
