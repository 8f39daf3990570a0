"""The program that plays one episode of segments with random actions: ``python -m tidegate.launch.play_child``.

In a process of its own, because the environment may print, hang or crash.
"""

import time
from typing import Any, cast

import msgspec

from tidegate.runtime.child_question import answer_question
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.loading import make_importable

STEPS_MAX = 100_000
PLAYED_S_MAX = 60.0
VALUES_SHOWN = 8


class PlayQuestion(msgspec.Struct, frozen=True):
    """The environment to play, and the folder of the run file."""

    workload: WorkloadConfig
    files_dir: str
    seed: int


class PlayedSegments(msgspec.Struct, frozen=True, tag="played"):
    """One episode. ``observation``: its first one, in words; ``rewards``: the distinct ones, at most eight."""

    observation: str
    num_steps: int
    episode_return: float
    rewards: list[float]
    end: str
    took_s: float


def play(question: PlayQuestion) -> PlayedSegments:
    """Play it to its end, or until ``STEPS_MAX`` or ``PLAYED_S_MAX``.

    Raises:
        TidegateError: it cannot be opened, or fails.
    """
    # They import Gymnasium, and run the code of others.
    from tidegate.vector_envs.failures import failure_of
    from tidegate.vector_envs.opening import open_vector_env, quiet

    make_importable(question.files_dir)
    env_id = question.workload.env
    total, rewards, end = 0.0, set[float](), ""
    number, began_s = 0, time.monotonic()
    envs = open_vector_env(question.workload, num_envs=1, checked=True)
    with quiet():
        try:
            seen, _ = envs.reset(seed=question.seed)
            observation = shown(seen)
            envs.action_space.seed(question.seed)
            while not end:
                number += 1
                _, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
                total += float(reward[0])
                if len(rewards) < VALUES_SHOWN:
                    rewards.add(float(reward[0]))
                end = _end(bool(terminated[0]), bool(truncated[0]), number, time.monotonic() - began_s)
        except Exception as error:  # an environment is third-party code
            raise failure_of(env_id, f"in step {number}" if number else "in reset", error) from error
        finally:
            envs.close()
    return PlayedSegments(observation, number, total, sorted(rewards), end, time.monotonic() - began_s)


def _end(terminated: bool, truncated: bool, number: int, played_s: float) -> str:
    if terminated:
        return "terminated"
    if truncated:
        return "truncated (its limit of steps)"
    if number >= STEPS_MAX or played_s > PLAYED_S_MAX:
        return f"still running after {number:,} steps and {played_s:.0f} s: has it an end?"
    return ""


def shown(seen: Any, name: str = "") -> str:
    """An observation of one copy in words: values of short ones, shape and range of others."""
    if isinstance(seen, dict):
        parts = cast("dict[str, Any]", seen)
        return ", ".join(shown(each, str(key)) for key, each in parts.items())
    if isinstance(seen, tuple):
        return ", ".join(shown(each, str(key)) for key, each in enumerate(cast("tuple[Any, ...]", seen)))
    array = seen[0]
    label = f"{name}: " if name else ""
    if array.size <= VALUES_SHOWN:
        return f"{label}{array.tolist()}"
    return f"{label}{array.dtype} of {array.shape} from {array.min()} to {array.max()}"


if __name__ == "__main__":
    answer_question(PlayQuestion, play)
