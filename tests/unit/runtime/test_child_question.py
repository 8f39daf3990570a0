"""A question to a child process: its answer, its refusal, and each way in which there is no answer."""

import os
import time
from pathlib import Path

import psutil
import pytest

from tests.support.questioned import Asked
from tidegate.core.errors import ConfigError
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, ask

# Where the child finds its module: a program finds none in its working directory.
ROOT = Path(__file__).parents[3]
CHILD = "tests.support.questioned"
# Of a child that answers, on a busy machine.
DEADLINE_S = 100.0


def asked(way: str, text: str = "{", *, deadline_s: float = DEADLINE_S) -> dict[str, str]:
    return ask(
        CHILD,
        Asked(way, text),
        dict[str, str],
        deadline_s=deadline_s,
        environ={**os.environ, "GIVEN": "this", "PYTHONPATH": str(ROOT)},
    )


def test_answer_arrives_although_the_child_prints_and_reads() -> None:
    assert asked("answers") == {"text": "{", "read": "", "environment": "this"}


def test_refusal_is_the_error_of_the_child_with_all_its_parts() -> None:
    with pytest.raises(ConfigError) as raised:
        asked("refuses")
    assert (raised.value.what, raised.value.why, raised.value.fix) == (
        "It does not fit",
        "it is too large",
        "use a smaller one",
    )


def test_child_that_fails_is_told_with_its_last_line() -> None:
    with pytest.raises(ChildEndedError) as raised:
        asked("raises", "no licence")
    assert (raised.value.exit_code, raised.value.reason) == (1, "RuntimeError: no licence")


def test_child_that_ends_itself_is_told_with_its_exit_code() -> None:
    with pytest.raises(ChildEndedError) as raised:
        asked("exits")
    assert (raised.value.exit_code, raised.value.reason) == (7, "")


def test_child_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    for deadline_s in (
        1.0,
        10.0,
        DEADLINE_S,
    ):  # until the machine was fast enough for the child to get that far
        with pytest.raises(ChildTimeoutError):
            asked("hangs", str(started), deadline_s=deadline_s)
        if started.exists():
            break
    assert ended(int(started.read_text()))


def ended(pid: int) -> bool:
    """Whether a killed process ends within the deadline; one that no parent reaps stays as a zombie."""
    give_up_at_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_at_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False
