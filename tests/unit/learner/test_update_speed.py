import json
from pathlib import Path

import msgspec
import pytest
import torch

from tests.support.settings import make_settings
from tidegate.core.sizing.accelerators import ACCELERATORS
from tidegate.core.sizing.learner import Training, flop_utilisation
from tidegate.core.sizing.shapes import SHAPES
from tidegate.learner.config import LearnerConfig
from tidegate.learner.update_speed import UpdateSpeed, find_update_speed
from tidegate.runtime.config import PolicyConfig, Settings

CUDA = torch.device("cuda", 0)
H100 = ACCELERATORS["H100-80"]
TRAINING = Training(SHAPES["7b"], length=2048, ranks=2)
METRICS = {"update_tokens": 60_000.0, "text_tokens_mean": 1_000.0}


def test_utilisation_is_the_operations_of_a_rank_over_its_peak() -> None:
    """By hand: 6 operations a parameter and token, and 8 where several passes are computed forwards twice."""
    shape = SHAPES["0.5b"]
    training = Training(shape, length=1, pass_tokens=4096)
    # Attention to one token: 2 operations of each layer's query width forwards, and twice that backwards.
    attention = 2 * shape.num_layers * shape.query_width
    for tokens, forwards in ((4_000, 1), (9_000, 2)):
        operations = tokens * (2 * shape.matrices + attention) * (forwards + 2)
        found = flop_utilisation(training, H100, tokens=tokens, seconds=0.1)
        assert found == pytest.approx(operations / 0.1 / H100.bfloat16_flops)
    assert flop_utilisation(training, H100, tokens=9_000, seconds=0.0) == 0.0


def test_gradient_steps_that_fit_into_a_pass_are_computed_forwards_once_however_many_they_are() -> None:
    training = Training(SHAPES["0.5b"], length=1, pass_tokens=4096)
    one = flop_utilisation(training, H100, tokens=4_000, seconds=0.1)
    several = UpdateSpeed(training, H100, 4).figures(
        {"update_tokens": 8_000.0, "text_tokens_mean": 1.0, "updates": 2.0}, seconds=0.4
    )
    assert several["mfu"] == pytest.approx(one)


def test_half_the_tokens_a_rank_are_half_of_its_utilisation() -> None:
    alone = msgspec.structs.replace(TRAINING, ranks=1)
    one = flop_utilisation(alone, H100, tokens=60_000, seconds=1.0)
    assert flop_utilisation(TRAINING, H100, tokens=60_000, seconds=1.0) == pytest.approx(one / 2)


def test_figures_of_an_update_use_its_own_texts() -> None:
    found = UpdateSpeed(TRAINING, H100).figures(METRICS, seconds=2.0)
    assert found["update_tokens_per_s"] == 30_000.0
    shorter = msgspec.structs.replace(TRAINING, length=1_000)
    assert found["mfu"] == flop_utilisation(shorter, H100, tokens=60_000, seconds=2.0)
    assert 0.0 < found["mfu"] < 1.0


def test_version_of_several_updates_has_the_tokens_of_all() -> None:
    found = UpdateSpeed().figures({**METRICS, "updates": 4.0}, seconds=2.0)
    assert found == {"update_tokens_per_s": 120_000.0}


@pytest.mark.parametrize("metrics", [{}, {"update_tokens": 0.0}])
def test_update_without_tokens_has_no_figures(metrics: dict[str, float]) -> None:
    assert UpdateSpeed(TRAINING, H100).figures(metrics, seconds=2.0) == {}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = {
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    policy = PolicyConfig(kind="transformers", path=str(tmp_path), dtype="bfloat16")
    return msgspec.structs.replace(make_settings(tmp_path, broker_url=""), policy=policy)


def found_on(settings: Settings, monkeypatch: pytest.MonkeyPatch, *, name: str) -> UpdateSpeed:
    def get_device_name(_device: torch.device) -> str:
        return name

    def mem_get_info(_device: torch.device) -> tuple[int, int]:
        return 1 << 30, int(79.6 * 2**30)

    monkeypatch.setattr(torch.cuda, "get_device_name", get_device_name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    return find_update_speed(settings, LearnerConfig(), device=CUDA, ranks=2)


def test_speed_is_found_from_the_models_config_and_the_devices_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = found_on(settings, monkeypatch, name="NVIDIA H100 80GB HBM3")
    assert speed.gpu == H100
    assert speed.training is not None
    assert (speed.training.shape.parameters, speed.training.ranks) == (SHAPES["0.5b"].parameters, 2)
    assert speed.minibatches == LearnerConfig().language_model.minibatches
    assert speed.training.width_bytes == 2


def test_device_or_model_without_a_known_peak_has_tokens_a_second_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = found_on(settings, monkeypatch, name="NVIDIA GeForce RTX 3090")
    (Path(settings.policy.path) / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    other_model = found_on(settings, monkeypatch, name="NVIDIA H100 80GB HBM3")
    on_cpu = find_update_speed(settings, LearnerConfig(), device=torch.device("cpu"), ranks=1)
    for speed in (unknown, other_model, on_cpu):
        assert speed.figures(METRICS, seconds=2.0) == {"update_tokens_per_s": 30_000.0}
