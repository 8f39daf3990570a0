"""What a text task is: problems, a score for a completion, demonstrations; and the dataset rows made from them."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from tidegate.core.errors import NotFoundError

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")


class Problem(msgspec.Struct, frozen=True):
    """A prompt with its verifiable answer; ``bin`` is its place in a curriculum (its kind of difficulty)."""

    prompt_id: str
    prompt: str
    answer: str
    bin: str


class Score(msgspec.Struct, frozen=True):
    """A verifier's verdict: the reward, what it is made of, and one line of text."""

    reward: float
    components: dict[str, float]
    log: str


class Demonstration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt with a good completion, for a supervised warm-up.

    ``exchanges``: what follows in an episode of several turns: the environment's reply to the turn before, and the
    policy's next turn.
    """

    prompt: str
    completion: str
    exchanges: tuple[tuple[str, str], ...] = ()


class ProblemSource(Protocol):
    """What prompts and demonstrations come from. Everything is a pure function of its arguments, in any process."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``; which split a problem is in never depends on the seed."""
        ...

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """``count`` demonstrations on problems of the ``train`` split only."""
        ...


class TextTask(ProblemSource, Protocol):
    """One verifiable task. Everything is a pure function of its arguments, in any process."""

    def score(self, problem: Problem, completion: str) -> Score:
        """The verdict on a completion. Total: any text has a score."""
        ...


def dataset_rows(
    task: ProblemSource, *, seed: int, num_demonstrations: int, bins: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """What a run reads of a task, by file name: rows to be written as JSON lines by the preparation of the run folder.

    ``bins``: only problems of these curriculum bins, and what demonstrations there are of them; none means all.

    Raises:
        NotFoundError: the task has no problem in one of the bins.
    """
    problems = {split: task.problems(split, seed=seed) for split in SPLITS}
    demonstrations = task.demonstrations(seed=seed, count=num_demonstrations)
    if bins:
        there = sorted({problem.bin for split in SPLITS for problem in problems[split]})
        unknown = next((name for name in bins if name not in there), None)
        if unknown is not None:
            raise NotFoundError(f"This task has no bin {unknown!r}", fix=f"use of {', '.join(there)}")
        problems = {
            split: [problem for problem in problems[split] if problem.bin in bins] for split in SPLITS
        }
        kept = {problem.prompt for problem in problems["train"]}
        demonstrations = [each for each in demonstrations if each.prompt in kept]
    rows = {f"{split}.jsonl": [msgspec.structs.asdict(each) for each in problems[split]] for split in SPLITS}
    rows["demonstrations.jsonl"] = [msgspec.to_builtins(each) for each in demonstrations]
    return rows
