"""The program that loads and tries an own objective: ``python -m tidegate.learner.optim.try_objective``."""

import msgspec

from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.learner.optim.own_objective import open_objective
from tidegate.runtime.child_question import answer_question


class ObjectiveQuestion(msgspec.Struct, frozen=True):
    """``folder``: of the run file."""

    settings: GrpoSettings
    folder: str


def tried(question: ObjectiveQuestion) -> None:
    """Load and try it.

    Raises:
        ConfigError: it cannot be loaded, or not be computed with.
    """
    open_objective(question.settings, folder=question.folder)


if __name__ == "__main__":
    answer_question(ObjectiveQuestion, tried)
