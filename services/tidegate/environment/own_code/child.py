"""The program that runs a user's scoring code: one question at a time, until its input ends or the worker kills it.

Usage: ``python -m tidegate.environment.own_code.child REFERENCE_JSON WORKER_PID MEMORY_BYTES``. Questions come on
standard input and answers leave on standard output, as frames; both are moved away before the code is loaded, which
then reads nothing and prints to standard error. Episodes of conversations are kept until their end; the worker closes
those that are not continued.
"""

import os
import signal
import sys

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.environment.judgements import (
    NoScoreError,
    VerifierFailed,
    failed_at,
    failure_of_exception,
    score_of,
)
from tidegate.environment.own_code.messages import (
    Answer,
    BeginQuestion,
    EndQuestion,
    Failed,
    Question,
    Ready,
    Replied,
    ReplyQuestion,
    Scored,
    ScoreQuestion,
)
from tidegate.environment.own_code.own_conversation import OwnConversation
from tidegate.environment.own_code.own_task import OwnTask, load_task
from tidegate.environment.tasks.port import Score
from tidegate.runtime.own_code.child_setup import end, limit_memory, own_pipes, show_stacks
from tidegate.runtime.own_code.frames import read_frame, write_frame
from tidegate.runtime.own_code.references import OwnReference, keep_shown_folder
from tidegate.runtime.parent_death import guard


def main() -> int:
    """Serve one reference."""
    reference = msgspec.json.decode(sys.argv[1], type=OwnReference)
    worker_pid, memory_bytes = int(sys.argv[2]), int(sys.argv[3])
    questions, answers = own_pipes()
    if not guard(worker_pid, signal.SIGKILL):
        return 1
    limit_memory(memory_bytes)
    show_stacks()
    keep_shown_folder()
    try:
        task = load_task(reference)
    except BaseException as error:  # loading runs the user's code
        write_frame(answers, _not_loaded(error, reference))
        return 1
    write_frame(answers, Ready(task.where, task.is_conversation, task.is_deterministic))
    pid = os.getpid()
    decoder: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
    episodes: dict[str, OwnConversation] = {}
    while data := read_frame(questions):
        answer = _answer(task, episodes, decoder.decode(data))
        if os.getpid() != pid:
            os._exit(1)  # a copy of this process that the code forked and let return
        write_frame(answers, answer)
    return 0


def _answer(task: OwnTask, episodes: dict[str, OwnConversation], question: Question) -> Answer:
    try:
        match question:
            case ScoreQuestion(problem, completion):
                return _scored(score_of(task.call(problem, completion)))
            case BeginQuestion(episode, problem, seed):
                episodes[episode] = task.begin(problem, seed=seed)
                return Replied(episodes[episode].opening)
            case ReplyQuestion(episode, text):
                return _replied(episodes, episode, text)
            case EndQuestion(episode):
                if ended := episodes.pop(episode, None):
                    ended.close()
                return Replied("")
    except NoScoreError as error:
        return _failed(failed_at(error.kind, str(error), where=task.where))
    except (
        BaseException
    ) as error:  # the code is the user's: SystemExit and KeyboardInterrupt are its mistakes too
        return _raised(error, task)


def _replied(episodes: dict[str, OwnConversation], episode: str, text: str) -> Replied:
    turn = episodes[episode].reply(text)
    if turn.done:
        episodes.pop(episode).close()
    score = None if turn.score is None else _scored(score_of(turn.score))
    return Replied(turn.observation, score, turn.truncated, turn.tools)


def _scored(score: Score) -> Scored:
    return Scored(score.reward, score.components, score.log)


def _raised(error: BaseException, task: OwnTask) -> Failed:
    failed = _failed(failure_of_exception(error, file=task.file, where=task.where))
    if isinstance(error, TidegateError):
        return msgspec.structs.replace(failed, retryable=error.retryable, retry_after_s=error.retry_after_s)
    if isinstance(error, MemoryError):  # perhaps of what earlier calls left: a new process has all of it
        return msgspec.structs.replace(failed, retryable=True, spent=True)
    return failed


def _not_loaded(error: BaseException, reference: OwnReference) -> Failed:
    if isinstance(error, TidegateError):
        return Failed(str(error)[:1000], type(error).__name__, "", "")
    return _failed(failure_of_exception(error, file=reference.source))


def _failed(failed: VerifierFailed) -> Failed:
    return Failed(failed.why[:1000], failed.kind[:1000], failed.where[:1000], failed.traceback)


if __name__ == "__main__":
    end(main())
