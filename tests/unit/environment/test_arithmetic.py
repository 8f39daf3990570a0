import subprocess
import sys

import msgspec
import pytest

from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.environment.tasks.port import Problem, dataset_rows

TASK = Arithmetic()
PROBLEM = Problem(prompt_id="47+38", prompt="47+38=", answer="085", bin="carries-1")

DIGEST_OF_HELDOUT = """
import hashlib
from tidegate.environment.tasks.arithmetic import Arithmetic
ids = [problem.prompt_id for problem in Arithmetic().problems("heldout", seed=3)]
for listed in (sorted(ids), ids):
    print(hashlib.sha256(",".join(listed).encode()).hexdigest())
"""


def test_splits_are_disjoint_and_together_every_problem() -> None:
    train = {problem.prompt_id for problem in TASK.problems("train", seed=0)}
    heldout = {problem.prompt_id for problem in TASK.problems("heldout", seed=0)}
    assert not train & heldout
    assert train | heldout == {f"{left}+{right}" for left in range(10, 100) for right in range(10, 100)}
    assert len(heldout) == 1620


def test_seed_changes_the_order_and_never_the_split() -> None:
    first, second = TASK.problems("heldout", seed=0), TASK.problems("heldout", seed=1)
    assert list(first) != list(second)
    assert set(first) == set(second)


def test_split_and_order_are_the_same_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DIGEST_OF_HELDOUT],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    # Golden: another split would let earlier runs' training problems into later runs' held-out set.
    assert outputs.pop().split()[0] == "023b69d47cf375c2b1f8a97f9fbbb41d4f005a52cf50fde0095e445c88ad0873"


def test_heldout_problems_are_as_hard_as_the_others() -> None:
    for name in ("carries-0", "carries-1", "carries-2"):
        shares = [
            sum(problem.bin == name for problem in problems) / len(problems)
            for problems in (TASK.problems("train", seed=0), TASK.problems("heldout", seed=0))
        ]
        assert abs(shares[0] - shares[1]) < 0.05


@pytest.mark.parametrize(
    ("left", "right", "answer", "curriculum_bin"),
    [
        (10, 10, "020", "carries-0"),
        (47, 38, "085", "carries-1"),
        (90, 20, "110", "carries-1"),
        (99, 99, "198", "carries-2"),
    ],
)
def test_problems_carry_their_answer_and_their_number_of_carries(
    left: int, right: int, answer: str, curriculum_bin: str
) -> None:
    by_id = {
        problem.prompt_id: problem
        for split in ("train", "heldout")
        for problem in TASK.problems(split, seed=0)
    }
    assert by_id[f"{left}+{right}"] == Problem(f"{left}+{right}", f"{left}+{right}=", answer, curriculum_bin)


@pytest.mark.parametrize(
    "completion",
    ["", "85", "0085", "085 ", " 085", "08", "580", "085\n", "08\N{REPLACEMENT CHARACTER}5", "०८५"],
)
def test_only_the_exact_answer_is_rewarded(completion: str) -> None:
    score = TASK.score(PROBLEM, completion)
    assert score.reward == 0.0
    assert score.components["exact"] == 0.0
    assert "expected '085'" in score.log


def test_the_answer_is_rewarded() -> None:
    score = TASK.score(PROBLEM, "085")
    assert (score.reward, score.components, score.log) == (1.0, {"exact": 1.0, "digits": 1.0}, "solved")


def test_digits_in_their_place_are_counted_and_not_rewarded() -> None:
    score = TASK.score(PROBLEM, "095")
    assert score.reward == 0.0
    assert score.components["digits"] == pytest.approx(2 / 3)


def test_log_of_a_runaway_completion_stays_short() -> None:
    assert len(TASK.score(PROBLEM, "9" * 100_000).log) < 100


def test_problem_without_an_answer_is_never_solved_by_digits() -> None:
    unknown = msgspec.structs.replace(PROBLEM, answer="")
    assert TASK.score(unknown, "085").components == {"exact": 0.0, "digits": 0.0}


def test_demonstrations_are_right_and_never_held_out() -> None:
    heldout = {problem.prompt for problem in TASK.problems("heldout", seed=0)}
    train = {problem.prompt: problem.answer for problem in TASK.problems("train", seed=0)}
    demonstrations = TASK.demonstrations(seed=1, count=7000)
    assert len(demonstrations) == 7000
    assert len({demonstration.prompt for demonstration in demonstrations[: len(train)]}) == len(train)
    for demonstration in demonstrations:
        assert demonstration.prompt not in heldout
        assert train[demonstration.prompt] == demonstration.completion


def test_dataset_rows_hold_problems_and_demonstrations_as_plain_values() -> None:
    rows = dataset_rows(TASK, seed=0, num_demonstrations=5)
    assert {name: len(file_rows) for name, file_rows in rows.items()} == {
        "train.jsonl": 6480,
        "heldout.jsonl": 1620,
        "demonstrations.jsonl": 5,
    }
    assert rows["train.jsonl"][0].keys() == {"prompt_id", "prompt", "answer", "bin"}
    assert rows["demonstrations.jsonl"][0].keys() == {"prompt", "completion"}
