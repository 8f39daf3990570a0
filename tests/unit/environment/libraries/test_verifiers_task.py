"""The rows of an environment as the problems of a run."""

from typing import Any

import pytest

from tests.unit.environment.libraries.fakes import Library
from tidegate.environment.libraries.verifiers_task import VerifiersTask


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"say {number}", "answer": str(number)} for number in range(count)]


def ids_of(task: VerifiersTask) -> tuple[set[str], set[str]]:
    train, heldout = (
        {str(problem.prompt_id) for problem in task.problems(split, seed=0)} for split in ("train", "heldout")
    )
    return train, heldout


@pytest.mark.parametrize("which", ["train", "eval"])
def test_a_fifth_of_the_only_dataset_is_held_out(library: Library, which: str) -> None:
    library.train = library.eval = None
    setattr(library, which, rows(40))
    train, heldout = ids_of(VerifiersTask(id="mine"))
    assert not train & heldout
    assert len(train | heldout) == 40
    assert 2 <= len(heldout) <= 14


@pytest.mark.parametrize(("which", "count"), [("train", 1), ("train", 3), ("eval", 11)])
def test_of_so_few_rows_that_none_is_held_out_all_are_evaluated(
    library: Library, which: str, count: int
) -> None:
    library.train = library.eval = None
    setattr(library, which, rows(count))
    everything = {f"{which}-{number}" for number in range(count)}
    assert ids_of(VerifiersTask(id="mine")) == (everything, everything)


def test_rows_to_evaluate_on_are_held_out_where_there_are_some(library: Library) -> None:
    library.train, library.eval = rows(3), rows(2)
    assert ids_of(VerifiersTask(id="mine")) == ({"train-0", "train-1", "train-2"}, {"eval-0", "eval-1"})
