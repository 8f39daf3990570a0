"""Groups of scored completions as the tensors of a learner step, each completion validated.

Shapes: B completions, T their tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from tidegate.core.conversations import ConversationSlice, conversations_of
from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId
from tidegate.core.records import Array, Trajectory
from tidegate.learner.ranks.port import Packed
from tidegate.models.completion_batch import BatchConversation, CompletionBatch, pack_completions

_REQUIRED = ("prompt_tokens", "tokens", "behavior_logprobs")


@dataclass(frozen=True, slots=True)
class ScoredCompletions:
    """A batch of groups: tokens, behavior logprobs and versions, and rewards.

    ``steps_BT``: the step of the version that sampled each token.
    """

    completions: CompletionBatch
    behavior_logprobs_BT: Tensor
    steps_BT: Tensor
    rewards_B: Tensor
    temperature: float

    def pack(self) -> Packed:
        """The batch as named tensors, to be sent."""
        own = {
            "behavior_logprobs_BT": self.behavior_logprobs_BT,
            "steps_BT": self.steps_BT,
            "rewards_B": self.rewards_B,
        }
        shared = {field.name: getattr(self.completions, field.name) for field in fields(self.completions)}
        return Packed(tensors=shared | own, values={"temperature": self.temperature})

    @staticmethod
    def unpack(packed: Packed) -> "ScoredCompletions":
        """The batch of ``pack``."""
        tensors = dict(packed.tensors)
        return ScoredCompletions(
            behavior_logprobs_BT=tensors.pop("behavior_logprobs_BT"),
            steps_BT=tensors.pop("steps_BT"),
            rewards_B=tensors.pop("rewards_B"),
            completions=CompletionBatch(**tensors),
            temperature=packed.values["temperature"],
        )


def scored_completions(
    trajectories: Sequence[Trajectory], *, context_length: int, vocabulary_size: int, device: torch.device
) -> ScoredCompletions:
    """The completions of whole groups, each prompt of a group once.

    Agents write their own prompts, so that those of a group may differ, and an episode may have several conversations.

    Raises:
        RecordError: one has no reward, lacks a tensor, does not fit the model, or has other sampler settings.
    """
    group_of: dict[GroupId, int] = {}
    prompt_of: dict[tuple[int, bytes], int] = {}
    prompts: list[Array] = []
    conversations: list[list[BatchConversation]] = []
    for trajectory in trajectories:
        group = group_of.setdefault(trajectory.group_id, len(group_of))
        conversations.append([])
        for part in _checked(trajectory, like=trajectories[0], context_length=context_length):
            prompt = trajectory.tensors["prompt_tokens"][part.prompt]
            index = prompt_of.setdefault((group, prompt.tobytes()), len(prompts))
            if index == len(prompts):
                prompts.append(prompt)
            conversations[-1].append(BatchConversation(index, part.tokens.stop - part.tokens.start))
    completions = pack_completions(
        prompts,
        [trajectory.tensors["tokens"] for trajectory in trajectories],
        group_index=[group_of[trajectory.group_id] for trajectory in trajectories],
        conversations=conversations,
        chosen=[trajectory.tensors.get("chosen") for trajectory in trajectories],
        vocabulary_size=vocabulary_size,
    )
    shape = tuple(completions.tokens_BT.shape)
    logprobs_BT = np.zeros(shape, dtype=np.float32)
    steps_BT = np.zeros(shape, dtype=np.int32)
    for row, trajectory in enumerate(trajectories):
        logprobs = trajectory.tensors["behavior_logprobs"]
        logprobs_BT[row, : len(logprobs)] = logprobs
        for span in trajectory.spans:
            steps_BT[row, span.start : span.stop] = span.version.step
    return ScoredCompletions(
        completions=completions.to(device),
        behavior_logprobs_BT=torch.tensor(logprobs_BT, device=device),
        steps_BT=torch.tensor(steps_BT, device=device),
        rewards_B=torch.tensor(
            [trajectory.reward for trajectory in trajectories], dtype=torch.float32, device=device
        ),
        temperature=trajectories[0].sampler.temperature,
    )


def _checked(trajectory: Trajectory, *, like: Trajectory, context_length: int) -> list[ConversationSlice]:
    """The conversations of a trajectory that fits the model and the batch."""
    name = f"Trajectory {trajectory.trajectory_id}"
    tensors: Mapping[str, Array] = trajectory.tensors
    for tensor_name in _REQUIRED:
        if tensor_name not in tensors:
            raise RecordError(f"{name} has no {tensor_name}")
    num_tokens = len(tensors["tokens"])
    for tensor_name in ("behavior_logprobs", "chosen"):
        if tensor_name in tensors and len(tensors[tensor_name]) != num_tokens:
            raise RecordError(f"{name} has not one value per token in {tensor_name}")
    conversations = conversations_of(tensors)
    # The last token of a conversation is never an input.
    num_read = (
        max(
            part.prompt.stop - part.prompt.start + part.tokens.stop - part.tokens.start
            for part in conversations
        )
        - 1
    )
    if num_read > context_length:
        raise RecordError(f"{name} has {num_read} tokens to read", why=f"the context holds {context_length}")
    if trajectory.reward is None:
        raise RecordError(f"{name} has no reward", why="no environment has scored it")
    if trajectory.sampler.temperature != like.sampler.temperature or trajectory.sampler.temperature <= 0.0:
        raise RecordError(
            f"{name} was sampled at temperature {trajectory.sampler.temperature}",
            why=f"its batch was sampled at {like.sampler.temperature}, and logprobs of both cannot be compared",
        )
    return conversations
