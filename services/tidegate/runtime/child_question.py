"""One question to a process that ends with its answer, for code that may hang, crash or print, or imports for seconds.

The parent calls ``ask``. The child is ``python -m`` of a module that calls ``answer_question``.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import python_program

REASON_CHARS_MAX = 400

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")


class ChildTimeoutError(Exception):
    """The child did not answer within its deadline, and was killed."""


class ChildEndedError(Exception):
    """The child ended without an answer. ``reason``: the last line that it printed, empty if it printed none."""

    def __init__(self, exit_code: int, reason: str) -> None:
        """Both of the child."""
        super().__init__(f"exit code {exit_code}: {reason}")
        self.exit_code = exit_code
        self.reason = reason


class _RefusedQuestion(msgspec.Struct, frozen=True):
    what: str
    why: str
    fix: str


class _ChildReply(msgspec.Struct, frozen=True):
    """An answer, or the parts of an error's sentence."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    refusal: _RefusedQuestion | None = None


def ask(
    module: str,
    question: object,
    answer_type: type[AnswerT],
    *,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
) -> AnswerT:
    """Run the child and wait for it; it and all that it started are gone afterwards.

    ``environ``: its environment, this process's own if None.

    Raises:
        ConfigError: the child refuses, in its own words.
        ChildTimeoutError, ChildEndedError: there is no answer.
    """
    process = subprocess.Popen(
        python_program(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environ,
        preexec_fn=dies_with_this_process(),
    )
    try:
        replied, printed = process.communicate(msgspec.json.encode(question), timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        raise ChildTimeoutError from error
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    try:
        reply = msgspec.json.decode(replied, type=_ChildReply)
        if reply.refusal is None:
            return msgspec.json.decode(reply.answer, type=answer_type)
    except msgspec.MsgspecError as error:
        lines = printed.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:REASON_CHARS_MAX] if lines else ""
        raise ChildEndedError(process.returncode, reason) from error
    raise ConfigError(reply.refusal.what, why=reply.refusal.why, fix=reply.refusal.fix)


def answer_question(question_type: type[QuestionT], answer: Callable[[QuestionT], object]) -> NoReturn:
    """Be the child: answer the question on standard input, then end without a wait for threads or exit handlers.

    What the code prints goes to standard error, and it finds nothing more to read.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=question_type)
    try:
        reply = _ChildReply(answer=msgspec.Raw(msgspec.json.encode(answer(question))))
    except TidegateError as error:
        reply = _ChildReply(refusal=_RefusedQuestion(error.what, error.why, error.fix))
    replies.write(msgspec.json.encode(reply))
    replies.flush()
    sys.stderr.flush()
    os._exit(0)
