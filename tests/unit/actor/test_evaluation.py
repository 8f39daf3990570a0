"""The held-out file and its errors."""

from pathlib import Path

import msgspec
import pytest

from tidegate.actor.rollouts.heldout import HeldOutProblem, read_problems
from tidegate.core.errors import ConfigError
from tidegate.environment.tasks.arithmetic import Arithmetic


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
