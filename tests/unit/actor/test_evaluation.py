"""The held-out file and its errors, and the verdicts on answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.actor.episodes_harness import Harness, task_of
from tests.unit.actor.support import evaluation_task, version
from tidegate.actor.engines.port import Completed
from tidegate.actor.evaluation import held_out
from tidegate.actor.rollouts.heldout import HeldOutProblem, read_problems
from tidegate.catalogue import actor as statistics
from tidegate.core.cut_off import CUT_OFF
from tidegate.core.errors import ConfigError
from tidegate.core.records import Task
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.runtime.bus import Bus
from tidegate.wire.clients.environment import Completion, RewardedCompletion


def test_rows_that_a_run_prepares_are_read_up_to_the_bound(tmp_path: Path) -> None:
    problems = Arithmetic().problems("heldout", seed=0)[:5]
    path = tmp_path / "heldout.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(problem) for problem in problems) + b"\n\n")
    read = read_problems(path, num_max=3)
    assert read == [
        HeldOutProblem(problem.prompt_id, problem.prompt, problem.answer, problem.bin)
        for problem in problems[:3]
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no held-out problems in heldout.jsonl"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"prompt_id":"1+1","prompt":"1+1=","answer":"2"}\n{"prompt":', "Row 2 of heldout.jsonl"),
        (b'{"prompt_id":"1+1","prompt":"1+1="}', "Row 1 of heldout.jsonl"),
        (b"\xff\xfe", "Row 1 of heldout.jsonl"),
    ],
)
def test_file_that_holds_no_problems_is_named_with_its_row(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "heldout.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        read_problems(path, num_max=10)


async def test_answers_that_have_no_reward_yet_are_scored_and_the_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Scoring:
        async def score(self, _env: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
            asked.extend(each.completion for each in completions)
            return [RewardedCompletion(1.0, {}, "") for _ in completions]

    class Answering:
        async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
            said = [problem.prompt_id for problem in problems]
            return Completed(version(0), said, 3, [0.5, None, 0.0])

    def scoring(_context: object) -> Scoring:
        return Scoring()

    settings = make_settings(tmp_path, broker_url="")
    path = Path(settings.data_dir) / held_out.HELDOUT_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join(msgspec.json.encode(HeldOutProblem(name, "", "")) for name in "abc"))
    monkeypatch.setattr(held_out, "any_worker", scoring)
    context = make_context("actor", settings, bus=cast("Bus", None))
    evaluator = held_out.HeldOutEvaluator(context, Answering(), num_problems_max=9)
    result = await evaluator.evaluate(evaluation_task())
    assert asked == ["b"]
    assert result.figures[statistics.EVALUATION_MEAN_REWARD] == 0.5


async def test_evaluated_answer_that_was_cut_off_is_not_mistaken_for_a_finished_one() -> None:
    harness = Harness(stop_share=0.3)
    task = msgspec.structs.replace(evaluation_task(), sampler=task_of(max_new_tokens=3).sampler)
    problems = [HeldOutProblem(f"p-{number}", f"{number}+1=", str(number + 1)) for number in range(20)]
    completed = await harness.runner.complete(task, problems)
    for completion in completed.completions:
        assert completion.endswith(CUT_OFF) == (len(completion.removesuffix(CUT_OFF)) == 3)
    assert 0 < sum(completion.endswith(CUT_OFF) for completion in completed.completions) < len(problems)
