"""Apart from ``test_language_model``, which loads no transformers: that takes seconds, and torch's compiler with it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.learner.optim.test_language_model import CPU, batch
from tests.unit.models.tiny_llama import make_folder, open_model
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.learner.optim.language_model import LanguageModelTrainer


def test_adapters_are_trained_alone_and_their_reference_is_the_base(tmp_path: Path) -> None:
    settings = GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-2, kl_weight=0.1)
    folder = make_folder(tmp_path / "llama", tied=True)
    model = open_model(folder, lora_rank=4)
    made = LanguageModelTrainer(model, settings, seed=0, device=CPU)
    before = made.policy()
    base = {name: value.clone() for name, value in model.network.state_dict().items() if "lora" not in name}
    first = made.update(made.prepare(batch()), number=1)
    second = made.update(made.prepare(batch(1)), number=2)
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["reference_kl"] > 1e-8
    assert all("lora" in name for name in before)
    assert any(not np.array_equal(array, before[name]) for name, array in made.policy().items())
    for name, value in model.network.state_dict().items():
        if "lora" not in name:
            assert torch.equal(value, base[name]), name
    assert not any(key.startswith("reference/") for key in made.state().tensors)


def test_adapters_that_training_began_from_are_the_reference(tmp_path: Path) -> None:
    settings = GrpoSettings(minibatches=1, warmup_versions=0, learning_rate=1e-2, kl_weight=0.1)
    folder = make_folder(tmp_path / "llama", tied=True)
    made = LanguageModelTrainer(open_model(folder, lora_rank=4), settings, seed=0, device=CPU)
    generator = np.random.default_rng(0)
    begun = {
        name: array + generator.normal(scale=0.1, size=array.shape).astype(np.float32)
        for name, array in made.policy().items()
    }
    made.begin_from(begun)
    first = made.update(made.prepare(batch()), number=1)
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    resumed = LanguageModelTrainer(open_model(folder, lora_rank=4), settings, seed=0, device=CPU)
    resumed.restore(made.policy(), made.state())
    prepared = made.prepare(batch(1))
    found = [trainer.update(prepared, number=2)["reference_kl"] for trainer in (made, resumed)]
    assert found[0] == found[1] > 1e-8
    for name, array in made.policy().items():
        assert not np.array_equal(array, begun[name]) or not array.any()
