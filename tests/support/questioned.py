"""A child that answers as the question says: ``python -m tests.support.questioned``."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.files import replace_file

SLEEPS_S = 1000.0


class Asked(msgspec.Struct, frozen=True):
    """``way``: what the child does with ``text``."""

    way: str
    text: str


def answered(question: Asked) -> dict[str, str]:
    """Answer, or not."""
    if question.way == "refuses":
        raise ConfigError("It does not fit", why="it is too large", fix="use a smaller one")
    if question.way == "raises":
        raise RuntimeError(question.text)
    if question.way == "exits":
        os._exit(7)
    if question.way == "hangs":
        grandchild = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({SLEEPS_S})"])
        replace_file(Path(question.text), str(grandchild.pid).encode())
        time.sleep(SLEEPS_S)
    sys.stdout.write(question.text)  # no part of the answer
    return {"text": question.text, "read": sys.stdin.read(), "environment": os.environ.get("GIVEN", "")}


if __name__ == "__main__":
    answer_question(Asked, answered)
