"""The program that writes the prompts of a user's task: ``python -m tidegate.environment.own_code.rows_child``.

A question on standard input, an answer on standard output; the code reads nothing and prints to standard error.
"""

from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.environment.own_code.own_task import OwnTask, load_task
from tidegate.environment.own_code.rows import RowsQuestion, RowsWritten
from tidegate.environment.tasks.port import SPLITS, Demonstration, Problem, dataset_rows
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.files import replace_file
from tidegate.runtime.own_code.loading import described

TRAIN_FILE, DEMONSTRATIONS_FILE = "train.jsonl", "demonstrations.jsonl"


def written(question: RowsQuestion) -> RowsWritten:
    """Write the rows.

    Raises:
        TidegateError: the code cannot be loaded, fails, or has no usable prompts.
    """
    try:
        task = load_task(question.reference)
        if question.loads_only:
            return RowsWritten(task.is_conversation)
        rows = _of_dataset(task, question) if question.has_dataset else _of_task(task, question)
        encoder = msgspec.json.Encoder()
        for name, each in rows.items():
            path = Path(question.folder) / name
            if not path.exists():
                replace_file(path, encoder.encode_lines(each))
    except TidegateError:
        raise
    except BaseException as error:  # the code is the user's
        raise ConfigError(
            f"{question.reference.written} cannot be loaded",
            why=described(error, file=question.reference.source),
            fix="correct it, then start the run again",
        ) from error
    return RowsWritten(task.is_conversation)


def _of_task(task: OwnTask, question: RowsQuestion) -> dict[str, list[dict[str, object]]]:
    rows = dataset_rows(
        task, seed=question.seed, num_demonstrations=question.num_demonstrations, bins=question.bins
    )
    empty = next((split for split in SPLITS if not rows[f"{split}.jsonl"]), None)
    if empty is not None:
        raise ConfigError(
            f"{question.reference.written} has no {'training' if empty == 'train' else 'held-out'} problems",
            why="a fifth of those that problems() returns is held out, by the digest of their prompt_id",
            fix="return more problems: ten or more",
        )
    return rows


def _of_dataset(task: OwnTask, question: RowsQuestion) -> dict[str, list[dict[str, object]]]:
    """The task's demonstrations of the prompts of the dataset."""
    problems: list[Problem] = []
    with (Path(question.folder) / TRAIN_FILE).open("rb") as lines:
        for line in lines:
            problem = msgspec.json.decode(line, type=Problem)
            if not question.bins or problem.bin in question.bins:
                problems.append(problem)
            if len(problems) == question.num_demonstrations:
                break
    shown = task.demonstrations_of(problems, seed=question.seed, count=question.num_demonstrations)
    return {DEMONSTRATIONS_FILE: [_plain(each) for each in shown]}


def _plain(demonstration: Demonstration) -> dict[str, object]:
    return msgspec.to_builtins(demonstration)


if __name__ == "__main__":
    answer_question(RowsQuestion, written)
