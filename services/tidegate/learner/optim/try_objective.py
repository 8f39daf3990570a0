"""The program that loads and tries an own objective: ``python -m tidegate.learner.optim.try_objective``.

Settings on standard input; exit code 0, or 2 with the sentence on standard error.
"""

import sys

import msgspec

from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.errors import ConfigError
from tidegate.learner.optim.own_objective import open_objective
from tidegate.runtime import exit_codes


class ObjectiveQuestion(msgspec.Struct, frozen=True):
    """``folder``: of the run file."""

    settings: GrpoSettings
    folder: str


def main() -> int:
    """Try the objective of a question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=ObjectiveQuestion)
    try:
        open_objective(question.settings, folder=question.folder)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return exit_codes.BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
