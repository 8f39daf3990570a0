"""Sampling with the model on a second device, by which a forgotten ``device`` shows.

Continuous batching is not tried here: it runs in ``inference_mode``, which the device of the tests cannot.
"""

import pytest
import torch

from tests.support.second_device import second_device
from tests.unit.models.continuous_support import make_model
from tidegate.models.sampling import generate

CPU = torch.device("cpu")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_groups_are_sampled_as_on_the_cpu(temperature: float) -> None:
    prompts = [[3, 4, 5], [6, 7]]

    def sampled(device: torch.device) -> list[list[int]]:
        completions = generate(
            make_model(0).to(device),
            prompts,
            num_samples=3,
            max_new_tokens=8,
            temperature=temperature,
            generator=torch.Generator().manual_seed(1),
        )
        return [completion.tokens.tolist() for completion in completions]

    assert sampled(second_device()) == sampled(CPU)
