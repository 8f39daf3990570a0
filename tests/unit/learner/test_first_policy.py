import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import structlog
import torch

from tests.support.settings import make_settings
from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.learner import first_policy
from tidegate.learner.config import LearnerConfig
from tidegate.learner.first_policy import warm_up
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.registry import TrainerSetting, language_model
from tidegate.learner.warmup import WarmupProgress
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.runtime.config import PolicyConfig, Settings

TEXTS = [first + second for first in "abcd" for second in "abcd"]
LOG: structlog.stdlib.BoundLogger = structlog.get_logger("test")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "run" / "data"
    folder.mkdir(parents=True)
    demonstrations = [{"prompt": f"{text}=", "completion": text} for text in TEXTS]
    (folder / "demonstrations.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(demonstrations))
    return msgspec.structs.replace(
        make_settings(tmp_path / "run", broker_url=""),
        policy=PolicyConfig(kind="char_lm", d_model=16, num_layers=1, num_heads=2, context_length=8),
    )


@pytest.fixture
def config(tmp_path: Path) -> LearnerConfig:
    warmup = WarmupSettings(stop_at_solved=0.3, max_steps=400, batch_size=32, learning_rate=1e-2)
    return LearnerConfig(warmup=warmup, cache_dir=str(tmp_path / "cache"))


def fresh(settings: Settings, config: LearnerConfig) -> LanguageModelTrainer:
    return language_model(TrainerSetting(settings, config, torch.device("cpu")))


def warmed(settings: Settings, config: LearnerConfig) -> tuple[dict[str, Array], int]:
    """The policy after a warm-up, and the number of evaluations (none from the cache)."""
    trainer = fresh(settings, config)
    evaluations: list[WarmupProgress] = []
    warm_up(trainer, settings, config, report=evaluations.append, log=LOG)
    return trainer.policy(), len(evaluations)


def same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return all(np.array_equal(array, right[name]) for name, array in left.items())


def test_warmup_is_made_once_and_then_taken_from_the_cache(settings: Settings, config: LearnerConfig) -> None:
    made, num_evaluations = warmed(settings, config)
    assert num_evaluations > 0
    assert not same(made, fresh(settings, config).policy())
    again, num_evaluations = warmed(settings, config)
    assert num_evaluations == 0
    assert same(made, again)


def test_warmup_that_no_disk_takes_is_a_policy_all_the_same(
    settings: Settings, config: LearnerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _tensors: dict[str, Array]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(first_policy, "write_tensors", full)
        made, _ = warmed(settings, config)
    again, num_evaluations = warmed(settings, config)
    assert num_evaluations > 0
    assert same(made, again)


@pytest.mark.slow
def test_changed_data_seed_or_settings_make_a_new_warmup(settings: Settings, config: LearnerConfig) -> None:
    warmed(settings, config)
    reseeded = msgspec.structs.replace(settings, seed=settings.seed + 1)
    assert warmed(reseeded, config)[1] > 0
    stricter = msgspec.structs.replace(
        config, warmup=msgspec.structs.replace(config.warmup, stop_at_solved=0.35)
    )
    assert warmed(settings, stricter)[1] > 0
    path = Path(settings.data_dir) / "data" / "demonstrations.jsonl"
    path.write_bytes(path.read_bytes() + b'{"prompt": "aa=", "completion": "aa"}\n')
    assert warmed(settings, config)[1] > 0


@pytest.mark.slow
def test_corrupt_cache_is_recomputed(settings: Settings, config: LearnerConfig) -> None:
    made, _ = warmed(settings, config)
    (path,) = Path(config.cache_dir).glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    again, num_evaluations = warmed(settings, config)
    assert num_evaluations > 0
    assert same(made, again)
    assert warmed(settings, config)[1] == 0


@pytest.mark.slow
def test_corrupt_description_of_the_cache_is_recomputed(settings: Settings, config: LearnerConfig) -> None:
    made, _ = warmed(settings, config)
    (path,) = Path(config.cache_dir).glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"task", b"ta\xffk"))
    again, num_evaluations = warmed(settings, config)
    assert num_evaluations > 0
    assert same(made, again)


def test_without_a_cache_nothing_is_kept(settings: Settings, config: LearnerConfig) -> None:
    uncached = msgspec.structs.replace(config, cache_dir="")
    assert warmed(settings, uncached)[1] > 0
    assert not Path(config.cache_dir).exists()


def test_missing_or_broken_dataset_is_named(settings: Settings, config: LearnerConfig) -> None:
    path = Path(settings.data_dir) / "data" / "demonstrations.jsonl"
    path.write_text('{"prompt": 3}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"demonstrations\.jsonl"):
        warmed(settings, config)
    path.unlink()
    with pytest.raises(ConfigError, match=r"demonstrations\.jsonl cannot be read"):
        warmed(settings, config)
