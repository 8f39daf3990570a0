"""The process of the preflight: describes an environment and builds the policy for it, then answers and ends.

In a process of its own, because it imports Gymnasium and runs the code of the environment, which may print, hang or
crash. Question and answer are MessagePack on standard input and output; what the environment prints goes to standard
error.
"""

import math
import os
import sys
from typing import TypeAlias

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.launch.guarded import guard_by_supervisor
from tidegate.runtime.config import PolicyConfig, WorkloadConfig


class EnvironmentQuestion(msgspec.Struct, frozen=True):
    """The environment to describe, and the policy that must fit it; None for none."""

    workload: WorkloadConfig
    policy: PolicyConfig | None


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
    from tidegate.vector_envs.describing import describe

    try:
        description = describe(question.workload)
        policy = build_policy(description, question.policy) if question.policy is not None else None
    except TidegateError as error:
        return Refused(error.what, error.why, error.fix)
    except SystemExit as error:  # third-party code may do anything
        return Refused(f"Environment {question.workload.env!r} exits with {error.code!r}", "", "")
    sizes = policy.parameter_shapes().values() if policy is not None else ()
    return Described(description, sum(math.prod(shape) for shape in sizes))


def main() -> None:
    """Answer the one question on standard input."""
    guard_by_supervisor()
    answers = os.dup(1)
    os.dup2(2, 1)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=EnvironmentQuestion)
    with os.fdopen(answers, "wb") as file:
        file.write(msgspec.msgpack.encode(check(question)))
    # Threads of an environment must not keep a process that has answered.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
