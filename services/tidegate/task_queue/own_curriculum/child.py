"""The program that runs a user's curriculum: one question at a time, until its input ends or the queue kills it.

Usage: ``python -m tidegate.task_queue.own_curriculum.child REFERENCE_JSON SERVICE_PID MEMORY_BYTES``.
"""

import os
import signal
import sys

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.runtime.own_code.child_setup import end, limit_memory, own_pipes, show_stacks
from tidegate.runtime.own_code.frames import read_frame, write_frame
from tidegate.runtime.own_code.references import OwnReference, keep_shown_folder
from tidegate.runtime.parent_death import guard
from tidegate.task_queue.own_curriculum.code import failure_of, load_curriculum
from tidegate.task_queue.own_curriculum.messages import CurriculumReady, WeightsFailed, WeightsQuestion


def main() -> int:
    """Serve one reference."""
    reference = msgspec.json.decode(sys.argv[1], type=OwnReference)
    service_pid, memory_bytes = int(sys.argv[2]), int(sys.argv[3])
    questions, answers = own_pipes()
    if not guard(service_pid, signal.SIGKILL):
        return 1
    limit_memory(memory_bytes)
    show_stacks()
    keep_shown_folder()
    try:
        curriculum = load_curriculum(reference)
    except TidegateError as error:
        write_frame(answers, WeightsFailed(type(error).__name__, str(error)[:1000]))
        return 1
    except BaseException as error:  # loading runs the user's code
        write_frame(answers, failure_of(error, file=reference.source))
        return 1
    write_frame(answers, CurriculumReady(curriculum.where[:1000]))
    pid = os.getpid()
    decoder = msgspec.msgpack.Decoder(WeightsQuestion)
    while data := read_frame(questions):
        answer = curriculum.answer(decoder.decode(data))
        if os.getpid() != pid:
            os._exit(1)  # a copy of this process that the code forked and let return
        write_frame(answers, answer)
    return 0


if __name__ == "__main__":
    end(main())
