"""The process of the preflight: describes an environment and builds the policy for it, then answers and ends.

In a process of its own, because it imports Gymnasium and runs the code of the environment, which may print, hang or
crash. It is a fork of ``tidegate up``, or a program where forking is not safe: question and answer are then MessagePack
on standard input and output, and what the environment prints goes to standard error.
"""

import math
import os
import sys
import traceback
from importlib.util import find_spec
from typing import BinaryIO, NoReturn, TypeAlias

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.launch.guarded import guard_by_supervisor
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.runtime.own_code.loading import make_importable


class EnvironmentQuestion(msgspec.Struct, frozen=True):
    """The environment to describe, and the policy that must fit it; None for none. ``files_dir``: of the run file."""

    workload: WorkloadConfig
    policy: PolicyConfig | None
    files_dir: str = ""


class Described(msgspec.Struct, frozen=True, tag="described"):
    """The environment works. ``num_parameters``: of the policy for it; 0 without one."""

    description: EnvironmentDescription
    num_parameters: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why the run cannot work."""

    what: str
    why: str
    fix: str


Answer: TypeAlias = Described | Refused


def check(question: EnvironmentQuestion) -> Answer:
    """Describe the environment, and build the policy from the description."""
    # They are heavy, or run the code of others.
    from tidegate.models.policies import build_policy
    from tidegate.runtime.own_policy import load_policy_code
    from tidegate.vector_envs.describing import describe

    make_importable(question.files_dir)
    num_parameters = 0

    def build(description: EnvironmentDescription) -> None:
        nonlocal num_parameters
        if question.policy is not None:
            policy = build_policy(
                description,
                question.policy,
                code=load_policy_code(question.policy, folder=question.files_dir),
            )
            if question.policy.is_own and find_spec("torch") is not None:
                # It loads torch: only for code of one's own.
                from tidegate.models.own_layers_trial import try_own_layers

                try_own_layers(policy, written=question.policy.kind)
            num_parameters = sum(math.prod(shape) for shape in policy.parameter_shapes().values())

    try:
        return Described(describe(question.workload, accept=build), num_parameters)
    except TidegateError as error:
        return Refused(error.what, error.why, error.fix)
    except SystemExit as error:  # third-party code may do anything
        return Refused(f"Environment {question.workload.env!r} exits with {error.code!r}", "", "")


def answer(question: EnvironmentQuestion, reply: BinaryIO) -> NoReturn:
    """Write the answer and end the process: threads of an environment must not keep one that has answered."""
    try:
        found = check(question)
        reply.write(msgspec.msgpack.encode(found))
        reply.flush()
    except BaseException:  # a mistake of this module; its last line is what the user is told
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> NoReturn:
    """Answer the one question on standard input."""
    guard_by_supervisor()
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=EnvironmentQuestion)
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer(question, reply)


if __name__ == "__main__":
    main()
