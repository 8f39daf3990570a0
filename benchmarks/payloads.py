"""Trajectories as they travel, made up: segments of CartPole, and groups of short and of long completions."""

from dataclasses import dataclass

import numpy as np

from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, trajectory_id
from tidegate.core.records import Array, EpisodeEnd, StageTiming, Task, TaskKind, Trajectory, VersionSpan

VERSION = PolicyVersion(LineageName("0-bench"), 0)
OBSERVATION_SIZE = 4
NUM_ACTIONS = 2
# Of sums with two digits, and of what language models are mostly trained on.
SHORT_PROMPT_TOKENS, SHORT_TOKENS = 8, 16
LONG_PROMPT_TOKENS, LONG_TOKENS = 256, 1024
VOCABULARY_SIZE = 16


@dataclass(frozen=True, slots=True)
class Payload:
    """One kind of message: the tensors of each of its ``num_samples`` trajectories, which all share them.

    ``messages``: of one measurement.
    """

    name: str
    tensors: dict[str, Array]
    num_samples: int
    num_steps: int
    messages: int

    def task(self, run_id: RunId, number: int) -> Task:
        """Task ``number``, without a key."""
        kind: TaskKind = "group" if self.num_samples > 1 else "segment"
        return Task(_task_id(number), run_id, kind, VERSION, self.num_samples)

    def records(self, run_id: RunId, number: int, *, now_s: float = 1.0) -> list[Trajectory]:
        """The trajectories of task ``number``, made at ``now_s``, with all that actors and environments write."""
        task_id = _task_id(number)
        group = self.num_samples > 1
        # Samples of one task share these, as an actor's do.
        stages = (
            StageTiming("task.lease", "task_queue", now_s, now_s),
            StageTiming("trajectory.generate", "actor-0", now_s, now_s),
        )
        return [
            Trajectory(
                trajectory_id=trajectory_id(task_id, sample_index=index),
                run_id=run_id,
                task_id=task_id,
                group_id=GroupId(task_id),
                group_size=self.num_samples,
                spans=(VersionSpan(VERSION, 0, len(self.tensors["behavior_logprobs"])),),
                tensors=self.tensors,
                num_steps=self.num_steps,
                prompt_id=PromptId(f"p-{number}") if group else PromptId(""),
                prompt="12+34=" if group else "",
                answer="46" if group else "",
                completion="46" if group else "",
                reward=1.0 if group else None,
                reward_components={"correct": 1.0} if group else {},
                episodes=() if group else (EpisodeEnd(episode_return=20.0, length=20, position=19),),
                actor_id="actor-0",
                env_id="bench",
                length_tokens=self.num_steps if group else 0,
                started_at_s=now_s,
                finished_at_s=now_s,
                stages=stages,
                trace_parent="00-00000000000000000000000000000001-0000000000000001-00",
            )
            for index in range(self.num_samples)
        ]


def _task_id(number: int) -> TaskId:
    return TaskId(f"bench-{number:08}")


def payloads(*, quick: bool) -> list[Payload]:
    """The kinds that are measured, about a second of each: CPU time comes in hundredths, the broker works in bursts."""
    share = 10 if quick else 1
    return [
        Payload("segment, 64 steps of 8", segment(64, 8), 1, 64 * 8, 6000 // share),
        Payload("segment, 64 steps of 16", segment(64, 16), 1, 64 * 16, 5000 // share),
        Payload(
            f"group of 16 completions of {SHORT_TOKENS} tokens",
            _completion(SHORT_PROMPT_TOKENS, SHORT_TOKENS),
            16,
            SHORT_TOKENS,
            3000 // share,
        ),
        Payload(
            f"group of 16 completions of {LONG_TOKENS:,} tokens",
            _completion(LONG_PROMPT_TOKENS, LONG_TOKENS),
            16,
            LONG_TOKENS,
            1200 // share,
        ),
        Payload("segment, 128 steps of 64", segment(128, 64), 1, 128 * 64, 1000 // share),
    ]


def segment(num_steps: int, num_envs: int) -> dict[str, Array]:
    """The tensors of a segment of CartPole, made up."""
    rng = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    return {
        "observations": rng.standard_normal((num_steps + 1, num_envs, OBSERVATION_SIZE), dtype=np.float32),
        "actions": rng.integers(0, NUM_ACTIONS, size=shape, dtype=np.int32),
        "behavior_logprobs": -rng.random(shape, dtype=np.float32),
        "rewards": np.ones(shape, np.float32),
        "terminated": rng.random(shape) < 0.01,
        "truncated": np.zeros(shape, np.bool_),
        "valid": np.ones(shape, np.bool_),
    }


def _completion(prompt_tokens: int, tokens: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "prompt_tokens": rng.integers(0, VOCABULARY_SIZE, size=prompt_tokens, dtype=np.int32),
        "tokens": rng.integers(0, VOCABULARY_SIZE, size=tokens, dtype=np.int32),
        "behavior_logprobs": -rng.random(tokens, dtype=np.float32),
    }
