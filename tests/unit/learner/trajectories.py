"""Trajectories as actors record them, for the tests of this package."""

import msgspec
import numpy as np

from tidegate.core.conversations import CONVERSATIONS, conversations_array
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, trajectory_id
from tidegate.core.records import Array, EpisodeEnd, Sampler, Trajectory, VersionSpan
from tidegate.models.char_tokenizer import encode_completion, encode_prompt

ROOT = LineageName("0-aaaa")


def version(step: int, lineage: LineageName = ROOT) -> PolicyVersion:
    return PolicyVersion(lineage=lineage, step=step)


def segment_tensors(seed: int, *, num_steps: int = 8, num_envs: int = 4) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    flags = np.zeros((num_steps, num_envs), dtype=np.uint8)
    return {
        "observations": rng.standard_normal((num_steps + 1, num_envs, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, (num_steps, num_envs)).astype(np.int32),
        "behavior_logprobs": np.full((num_steps, num_envs), np.log(0.5), dtype=np.float32),
        "rewards": np.ones((num_steps, num_envs), dtype=np.float32),
        "terminated": flags,
        "truncated": flags,
        "valid": np.ones_like(flags),
    }


def segment(
    name: str,
    *,
    at: PolicyVersion,
    started_at_s: float = 0.0,
    seed: int = 0,
    returns: tuple[float, ...] = (),
    run: str = "test-run",
    tensors: dict[str, Array] | None = None,
    trace_parent: str = "",
) -> Trajectory:
    given = segment_tensors(seed) if tensors is None else tensors
    num_steps = len(given["behavior_logprobs"])
    return Trajectory(
        trajectory_id=trajectory_id(TaskId(name), sample_index=0),
        run_id=RunId(run),
        task_id=TaskId(name),
        group_id=GroupId(name),
        group_size=1,
        spans=(VersionSpan(at, 0, num_steps),),
        tensors=given,
        num_steps=int(given["behavior_logprobs"].size),
        episodes=tuple(EpisodeEnd(episode_return=value, length=1, position=0) for value in returns),
        started_at_s=started_at_s,
        finished_at_s=started_at_s,
        env_id="CartPole-v1",
        trace_parent=trace_parent,
    )


def with_conversations(trajectory: Trajectory, parts: list[tuple[str, str]]) -> Trajectory:
    """The same sample, made of several conversations: (prompt, completion) each, all under its first version."""
    prompts = [encode_prompt(prompt) for prompt, _ in parts]
    tokens = [encode_completion(completion) for _, completion in parts]
    lengths = [(len(prompt), len(reply)) for prompt, reply in zip(prompts, tokens, strict=True)]
    flat = np.array([token for reply in tokens for token in reply], dtype=np.int32)
    return msgspec.structs.replace(
        trajectory,
        spans=(VersionSpan(trajectory.spans[0].version, 0, len(flat)),),
        num_steps=len(flat),
        tensors={
            "prompt_tokens": np.array([token for prompt in prompts for token in prompt], dtype=np.int32),
            "tokens": flat,
            "behavior_logprobs": np.full(len(flat), -1.0, dtype=np.float32),
            CONVERSATIONS: conversations_array(lengths),
        },
    )


def group(
    name: str,
    prompt: str,
    completions: list[tuple[str, float]],
    *,
    at: PolicyVersion,
    logprob: float = -1.0,
    temperature: float = 1.0,
) -> list[Trajectory]:
    """The samples of one prompt: (completion, reward) each."""
    members: list[Trajectory] = []
    for index, (completion, reward) in enumerate(completions):
        tokens = np.array(encode_completion(completion), dtype=np.int32)
        members.append(
            Trajectory(
                trajectory_id=trajectory_id(TaskId(name), sample_index=index),
                run_id=RunId("test-run"),
                task_id=TaskId(name),
                group_id=GroupId(name),
                group_size=len(completions),
                spans=(VersionSpan(at, 0, len(tokens)),),
                tensors={
                    "prompt_tokens": np.array(encode_prompt(prompt), dtype=np.int32),
                    "tokens": tokens,
                    "behavior_logprobs": np.full(len(tokens), logprob, dtype=np.float32),
                },
                num_steps=len(tokens),
                reward=reward,
                sampler=Sampler(temperature=temperature, max_new_tokens=4),
            )
        )
    return members
