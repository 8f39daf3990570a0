"""Properties of every text task: splits, reference solutions, wrong answers, and the alphabet of the small models."""

import functools
import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import NotFoundError
from tidegate.environment.conversations.registry import CONVERSATIONS
from tidegate.environment.tasks.port import SPLITS, Demonstration, Problem, dataset_rows
from tidegate.environment.tasks.registry import TASKS, get_task
from tidegate.environment.tasks.splits import is_held_out
from tidegate.models.char_tokenizer import encode_completion, encode_prompt

# Tasks whose texts the character model can read: the others are for pretrained models.
FOR_CHARACTERS = ("arithmetic", "countdown", "long_addition")
SINGLE_TURN = sorted(TASKS.keys() - CONVERSATIONS.keys())

PRINT_DIGESTS = """
import hashlib, sys
from tidegate.environment.tasks.registry import get_task
for split in ("train", "heldout"):
    ids = [problem.prompt_id for problem in get_task(sys.argv[1]).problems(split, seed=3)]
    print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


@functools.cache
def train_problems(name: str) -> list[Problem]:
    """Drawn once, as it takes a second of CPU time."""
    return list(TASKS[name].problems("train", seed=0))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_splits_are_disjoint_a_fifth_is_held_out_and_ids_are_unique(name: str) -> None:
    ids = {split: [problem.prompt_id for problem in TASKS[name].problems(split, seed=0)] for split in SPLITS}
    assert not set(ids["train"]) & set(ids["heldout"])
    assert all(len(set(given)) == len(given) for given in ids.values())
    assert 0.15 < len(ids["heldout"]) / sum(map(len, ids.values())) < 0.25


@pytest.mark.parametrize("name", sorted(TASKS))
def test_seed_changes_the_order_and_never_the_split(name: str) -> None:
    for split in SPLITS:
        first, second = TASKS[name].problems(split, seed=0), TASKS[name].problems(split, seed=1)
        assert list(first) != list(second)
        assert set(first) == set(second)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
def test_split_and_order_are_the_same_in_every_process(name: str) -> None:
    other = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS, name],
        env={"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    here = [[problem.prompt_id for problem in TASKS[name].problems(split, seed=3)] for split in SPLITS]
    assert other == [hashlib.sha256(repr(ids).encode()).hexdigest() for ids in here]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_held_out_problems_are_of_the_same_bins_in_about_the_same_shares(name: str) -> None:
    train, heldout = ([problem.bin for problem in TASKS[name].problems(split, seed=0)] for split in SPLITS)
    assert set(train) == set(heldout)
    for bin_name in set(train):
        assert abs(train.count(bin_name) / len(train) - heldout.count(bin_name) / len(heldout)) < 0.06


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_reference_solutions_score_one_and_are_never_held_out(name: str) -> None:
    task = TASKS[name]
    problems = {problem.prompt: problem for problem in task.problems("train", seed=0)}
    for demonstration in task.demonstrations(seed=0, count=2000):
        problem = problems[demonstration.prompt]
        assert task.score(problem, demonstration.completion).reward == 1.0, problem


@pytest.mark.parametrize("name", SINGLE_TURN)
@given(text=st.text(max_size=60), index=st.integers(0, 200))
def test_any_text_has_a_score_between_zero_and_one(name: str, text: str, index: int) -> None:
    task = TASKS[name]
    score = task.score(train_problems(name)[index], text)
    assert 0.0 <= score.reward <= 1.0
    assert (score.reward == 1.0) == (score.components["exact"] == 1.0) == (score.log == "solved")


@pytest.mark.parametrize("name", ["arithmetic", "long_addition", "sums"])
@given(
    index=st.integers(0, 200), position=st.integers(0, 400), character=st.sampled_from("0123456789;= +-x\n")
)
def test_answer_with_a_slip_is_never_worth_one(name: str, index: int, position: int, character: str) -> None:
    problem = train_problems(name)[index]
    place = position % (len(problem.answer) + 1)
    for slipped in (
        problem.answer[:place] + character + problem.answer[place:],
        problem.answer[:place] + character + problem.answer[place + 1 :],
        problem.answer[:place],
    ):
        assert (TASKS[name].score(problem, slipped).reward == 1.0) == (slipped == problem.answer)


@pytest.mark.parametrize("name", FOR_CHARACTERS)
def test_small_models_can_read_and_write_the_task(name: str) -> None:
    for demonstration in TASKS[name].demonstrations(seed=0, count=300):
        encode_prompt(demonstration.prompt)
        encode_completion(demonstration.completion)


def test_a_fifth_of_any_ids_is_held_out() -> None:
    held_out = sum(is_held_out(f"problem-{number}") for number in range(10_000))
    assert 1_800 < held_out < 2_200


def test_demonstrations_of_one_turn_are_written_as_before() -> None:
    rows = dataset_rows(get_task("arithmetic"), seed=0, num_demonstrations=1)["demonstrations.jsonl"]
    assert rows[0].keys() == {"prompt", "completion"}
    assert Demonstration("a", "b").exchanges == ()


def test_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"'chess'.*arithmetic"):
        get_task("chess")


def test_a_run_may_keep_to_some_of_a_tasks_bins() -> None:
    rows = dataset_rows(get_task("calculator"), seed=0, num_demonstrations=200, bins=("signs-1",))
    prompts = {row["prompt"] for row in rows["train.jsonl"]}
    assert {row["bin"] for split in SPLITS for row in rows[f"{split}.jsonl"]} == {"signs-1"}
    assert rows["demonstrations.jsonl"]
    assert {row["prompt"] for row in rows["demonstrations.jsonl"]} <= prompts
    with pytest.raises(NotFoundError, match="no bin 'signs-9'"):
        dataset_rows(get_task("calculator"), seed=0, num_demonstrations=1, bins=("signs-9",))
