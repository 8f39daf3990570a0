"""Random completions with holes, as tensors and as the lists that a slow twin reads."""

from dataclasses import replace

import torch
from torch import Tensor

from tests.reference.grpo import Completion
from tidegate.algorithms.grpo_inputs import CriticTargets, GrpoInputs

# What the policy chose: plain completions of several lengths, and some with an environment's replies inside.
CHOSEN = ("111", "1", "1011", "11", "0111", "100011")
GROUPS = (0, 0, 0, 1, 1, 1)
NUM_TOKENS = 6


def chosen_mask() -> Tensor:
    rows = [[character == "1" for character in chosen.ljust(NUM_TOKENS, "0")] for chosen in CHOSEN]
    return torch.tensor(rows)


def make_inputs(seed: int, *, drift: float, critic: bool = False) -> tuple[Tensor, GrpoInputs]:
    """Logprobs under θ that want a gradient, and inputs whose policies are ``drift`` nats apart.

    Garbage, another one in each tensor, where the policy did not choose.
    """
    generator = torch.Generator().manual_seed(seed)
    mask_BT = chosen_mask()

    def noise() -> Tensor:
        return torch.randn(mask_BT.shape, dtype=torch.float64, generator=generator)

    def garbage(tensor_BT: Tensor, value: float) -> Tensor:
        return tensor_BT.masked_fill(~mask_BT, value)

    behavior = -noise().abs() - 0.1
    proximal = behavior + drift * noise()
    logprobs = proximal + drift * noise()
    inputs = GrpoInputs(
        mask_BT=mask_BT,
        advantages_B=noise()[:, 0],
        behavior_logprobs_BT=garbage(behavior, 0.0),
        proximal_logprobs_BT=garbage(proximal, 5.0),
        reference_logprobs_BT=garbage(behavior + drift * noise(), -7.0),
        rewards_B=noise()[:, 0],
        group_index_B=torch.tensor(GROUPS),
        version_gap_BT=garbage((noise() * 3.0).abs().floor(), 900.0).to(torch.int64),
    )
    if critic:
        values = noise()
        inputs = replace(
            inputs,
            critic=CriticTargets(
                values_BT=garbage(values, 11.0),
                advantages_BT=garbage(noise(), 12.0),
                returns_BT=garbage(values + noise(), 13.0),
            ),
        )
    return garbage(logprobs, 300.0).requires_grad_(), inputs


def floats(row: Tensor) -> list[float]:
    return [float(value) for value in row.detach()]


def chosen_lists(tensor_BT: Tensor) -> list[list[float]]:
    """Each row's chosen values, without those between them."""
    return [floats(row[mask]) for row, mask in zip(tensor_BT, chosen_mask(), strict=True)]


def completions_of(logprobs_BT: Tensor, inputs: GrpoInputs) -> list[Completion]:
    """The same as the slow twin reads it."""
    assert inputs.proximal_logprobs_BT is not None
    assert inputs.reference_logprobs_BT is not None
    assert inputs.rewards_B is not None
    assert inputs.version_gap_BT is not None
    logprobs, behavior = chosen_lists(logprobs_BT), chosen_lists(inputs.behavior_logprobs_BT)
    proximal, reference = (
        chosen_lists(inputs.proximal_logprobs_BT),
        chosen_lists(inputs.reference_logprobs_BT),
    )
    gaps = chosen_lists(inputs.version_gap_BT)
    advantages = None if inputs.critic is None else chosen_lists(inputs.critic.advantages_BT)
    return [
        Completion(
            logprobs=logprobs[row],
            frozen=list(logprobs[row]),
            proximal=proximal[row],
            behavior=behavior[row],
            reference=reference[row],
            gaps=gaps[row],
            advantage=float(inputs.advantages_B[row]),
            reward=float(inputs.rewards_B[row]),
            group=GROUPS[row],
            weight=1.0 if inputs.weights_B is None else float(inputs.weights_B[row]),
            advantages=[] if advantages is None else advantages[row],
        )
        for row in range(len(CHOSEN))
    ]
