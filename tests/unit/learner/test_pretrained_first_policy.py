"""The first version of a pretrained model: warmed up on the demonstrations of the run folder, kept there, recorded."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import structlog
import torch

from tests.support.settings import make_settings
from tests.unit.models.tiny_llama import make_folder
from tests.unit.models.tiny_tokenizer import CHATML, add_tokenizer
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.launch.warmup_check import WarmupFound, WarmupQuestion, read_warmup
from tidegate.learner.config import LearnerConfig
from tidegate.learner.first_policy import warm_up
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.registry import TrainerSetting, language_model
from tidegate.learner.warmup import WarmupProgress
from tidegate.learner.warmup_record import WarmupRecord
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.runtime.config import LoraConfig, PolicyConfig, Settings

LOG: structlog.stdlib.BoundLogger = structlog.get_logger("test")
CONTEXT = 64
VOCABULARY = 272  # 3 special tokens, 256 bytes, and 13 rows of padding
CPU = torch.device("cpu")
PAIRS = [{"prompt": letter * 2, "completion": letter} for letter in "abcdefghijklmnopqrst"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = make_folder(
        tmp_path / "base",
        tied=True,
        vocab_size=VOCABULARY,
        eos_token_id=0,
        max_position_embeddings=CONTEXT,
    )
    return add_tokenizer(folder, chat_template=CHATML)


@pytest.fixture
def settings(tmp_path: Path, base: Path) -> Settings:
    data = tmp_path / "run" / "data"
    data.mkdir(parents=True)
    (data / "demonstrations.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(PAIRS))
    policy = PolicyConfig(
        kind="transformers", path=str(base), context_length=CONTEXT, lora=LoraConfig(rank=4)
    )
    return msgspec.structs.replace(make_settings(tmp_path / "run", broker_url=""), policy=policy)


@pytest.fixture
def config() -> LearnerConfig:
    warmup = WarmupSettings(
        demonstrations="chats.jsonl",
        max_steps=6,
        evaluate_every_steps=2,
        batch_size=8,
        ramp_steps=1,
        learning_rate=1e-2,
    )
    return LearnerConfig(
        warmup=warmup, language_model=GrpoSettings(kl_weight=0.1, objective="tis"), pass_tokens=256
    )


def warmed(
    settings: Settings, config: LearnerConfig
) -> tuple[LanguageModelTrainer, WarmupRecord | None, list[WarmupProgress]]:
    trainer = language_model(TrainerSetting(settings, config, CPU))
    evaluations: list[WarmupProgress] = []
    record = warm_up(trainer, settings, config, report=evaluations.append, log=LOG)
    return trainer, record, evaluations


def test_it_is_made_once_and_a_learner_that_starts_again_begins_with_the_same_version(
    settings: Settings, config: LearnerConfig
) -> None:
    trainer, record, evaluations = warmed(settings, config)
    assert record is not None
    assert (record.demonstrations, record.pairs) == ("chats.jsonl", 18)
    assert record.steps > 0
    # A letter and the end of the turn, of 18 pairs in an epoch of batches of 8, 8 and 2.
    assert record.tokens == {2: 32, 4: 36 + 16, 6: 72}[record.steps]
    assert record.loss_before is not None
    assert record.loss_after is not None
    assert record.loss_after < record.loss_before
    assert [each.steps for each in evaluations] == [0, 2, 4, 6]
    assert all("lora" in name for name in trainer.policy())
    again, same, none = warmed(settings, config)
    assert (same, none) == (record, [])
    for name, array in again.policy().items():
        np.testing.assert_array_equal(array, trainer.policy()[name])


def test_reinforcement_learning_begins_with_fresh_moments_and_the_warmed_policy_as_reference(
    settings: Settings, config: LearnerConfig
) -> None:
    trainer, _, _ = warmed(settings, config)
    state = trainer.state()
    moments = {name: array for name, array in state.tensors.items() if "exp_avg" in name or "step" in name}
    assert moments
    assert not any(array.any() for array in moments.values())
    reference = {
        name.removeprefix("reference/"): array
        for name, array in state.tensors.items()
        if "reference/" in name
    }
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(array, reference[name])
    restored = language_model(TrainerSetting(settings, config, CPU))
    restored.restore(trainer.policy(), state)
    for name, array in restored.state().tensors.items():
        np.testing.assert_array_equal(array, state.tensors[name])


def test_without_demonstrations_in_the_run_file_it_is_not_warmed_up(
    settings: Settings, config: LearnerConfig
) -> None:
    plain = msgspec.structs.replace(config, warmup=WarmupSettings())
    trainer, record, evaluations = warmed(settings, plain)
    assert (record, evaluations) == (None, [])
    assert all(not array.any() for name, array in trainer.policy().items() if "lora_B" in name)


def test_an_end_that_is_asked_for_meanwhile_keeps_nothing(settings: Settings, config: LearnerConfig) -> None:
    def stop(steps: int) -> None:
        if steps == 2:
            raise UnavailableError("The warm-up was stopped")

    trainer = language_model(TrainerSetting(settings, config, CPU))
    with pytest.raises(UnavailableError):
        warm_up(trainer, settings, config, report=lambda _: None, between=stop, log=LOG)
    assert [path.name for path in (Path(settings.data_dir) / "data").iterdir()] == ["demonstrations.jsonl"]


def test_what_is_checked_before_the_run_is_what_is_trained_on(settings: Settings, tmp_path: Path) -> None:
    path = Path(settings.data_dir) / "data" / "demonstrations.jsonl"
    # <|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n, then a letter and the end of the turn.
    longest = 1 + len("user\nab") + 1 + len("\n") + 1 + len("assistant\n") + 2
    assert read_warmup(WarmupQuestion(str(path), settings.policy)) == WarmupFound(
        pairs=20, tokens=40, longest=longest
    )
    short = msgspec.structs.replace(settings.policy, context_length=longest - 1)
    with pytest.raises(
        ConfigError, match=f"20 of 20 demonstrations are longer than .*set .* to {longest} or more"
    ):
        read_warmup(WarmupQuestion(str(path), short))
    path.write_bytes(msgspec.json.Encoder().encode_lines(PAIRS[:1] * 3))
    with pytest.raises(ConfigError, match="has 1 different demonstrations"):
        read_warmup(WarmupQuestion(str(path), settings.policy))


def test_conversations_of_several_messages_need_a_chat_template(settings: Settings, base: Path) -> None:
    path = Path(settings.data_dir) / "data" / "demonstrations.jsonl"
    prompt = json.dumps(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], separators=(",", ":")
    )
    path.write_bytes(msgspec.json.Encoder().encode_lines([{**pair, "prompt": prompt} for pair in PAIRS]))
    assert read_warmup(WarmupQuestion(str(path), settings.policy)).pairs == 20
    add_tokenizer(base, chat_template=None)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="has no chat template"):
        read_warmup(WarmupQuestion(str(path), settings.policy))
