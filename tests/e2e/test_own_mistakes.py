"""A run whose task makes every mistake of ``mistakes.py`` on a fifth of its prompts: it trains on the others."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, START_TIMEOUT_S, Run
from tests.e2e.killing import assert_accounting_balances

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(900)]

MAX_LAG = 2
TASK = """
import zlib

import mistakes

# A function that starts processes is no mistake that a verdict shows: its reward is a process id.
MISTAKES = sorted(
    name
    for name, value in vars(mistakes).items()
    if getattr(value, "__module__", "") == "mistakes"
    and not name.startswith(("_", "starts_", "forks_"))
    and name != "returns"
)


class Reverse:
    def problems(self):
        return [(f"{number:04}=", f"{number:04}"[::-1]) for number in range(0, 10_000, 7)]

    def score(self, prompt, completion, answer):
        digest = zlib.crc32(prompt.encode())
        if digest % 5 == 0:
            return getattr(mistakes, MISTAKES[digest // 5 % len(MISTAKES)])(prompt, completion, answer)
        return sum(a == b for a, b in zip(completion, answer)) / 4 if len(completion) == 4 else 0.0
"""
RUN = f"""
run: mistakes
workload:
  kind: text
  env: "my_task.py:Reverse"
  num_samples: 8
  sampler: {{max_new_tokens: 5}}
policy: {{kind: char_lm, context_length: 16}}
batch_size: 128
staleness: {{max_lag: {MAX_LAG}}}
task_queue: {{evaluation_every_versions: 20}}
actor: {{slots: 32}}
environment: {{score_deadline_s: 2, verifier_processes: 2, verifier_memory_bytes: 1073741824}}
learner: {{warmup: {{stop_at_solved: 0.2}}, language_model: {{learning_rate: 1.0e-3}}}}
"""
LOGGED = re.compile(r'event=verifier_failed verifier=task error="([^"]*)"')
# Kinds of failures that a person is told of, each with its place or what it gave.
KINDS_MIN = 20


def test_run_trains_on_while_a_fifth_of_its_prompts_make_every_mistake(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "run.yaml").write_text(RUN)
    shutil.copyfile(ROOT / "tests/integration/environment/mistakes.py", tmp_path / "mistakes.py")
    run = start(str(tmp_path / "run.yaml"), "--for", "100s")
    code, summary = run.wait(timeout_s=100.0 + START_TIMEOUT_S)
    assert code == 0
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert summary["versions"] >= 20
    assert not summary["restarts"]
    told = LOGGED.findall(run.log("environment-0"))
    assert len(told) >= KINDS_MIN, told
    assert len(told) == len(set(told)), "one of each kind"
    for each in told:
        assert "my_task.py:" in each or each.startswith("it gave the reward"), each
        assert f" at {str(tmp_path).lstrip('/')}" not in each, "one place has one name, also after os.chdir"
    assert "% of verdicts failed" in run.output.read_text()
