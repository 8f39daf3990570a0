"""The starting policy of a language-model run: a supervised warm-up, computed once and then read from a cache.

The cache's key is a digest of everything the result depends on (network, settings, seed, demonstrations), so a changed
dataset makes a new policy and an unchanged one costs nothing.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import safetensors
import safetensors.numpy
import structlog
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.warmup import WarmupExample, WarmupProgress, WarmupResult, supervised_warmup
from tidegate.models.char_lm import CharLm
from tidegate.runtime.config import Settings
from tidegate.runtime.files import replace_file

# Incremented when the warm-up computes another result from the same inputs.
FORMAT = 2
DEMONSTRATIONS_FILE = "demonstrations.jsonl"
# One in this many distinct demonstrations is held out for evaluation.
SET_ASIDE_ONE_IN = 10

_safetensors = cast("Any", safetensors.numpy)  # ships with partial types


def warm_up(
    trainer: LanguageModelTrainer,
    model: CharLm,
    settings: Settings,
    config: LearnerConfig,
    *,
    report: Callable[[WarmupProgress], None],
    log: structlog.stdlib.BoundLogger,
) -> WarmupResult | None:
    """Warm up the trainer's ``model`` in place; None when the result came from the cache.

    Raises:
        ConfigError: a dataset is missing or cannot be read.
        WarmupError: ``warmup.max_steps`` were not enough.
    """
    folder = Path(settings.data_dir) / "data"
    demonstrations_text = _read(folder / DEMONSTRATIONS_FILE)
    key = _key(settings, config, demonstrations_text)
    cached = Path(config.cache_dir) / f"warmup-{key}.safetensors" if config.cache_dir else None
    policy = _load(cached, log) if cached else None
    if policy is not None:
        trainer.begin_from(policy)
        log.info("warmup_from_cache", path=str(cached))
        return None
    examples = _decode(folder / DEMONSTRATIONS_FILE, demonstrations_text)
    set_aside = list(dict.fromkeys(examples))[::SET_ASIDE_ONE_IN]
    kept_back = frozenset(set_aside)
    result = supervised_warmup(
        model,
        [example for example in examples if example not in kept_back],
        set_aside,
        config.warmup,
        generator=torch.Generator().manual_seed(settings.seed),
        report=report,
    )
    policy = trainer.policy()
    trainer.begin_from(policy)
    if cached:
        _save(cached, policy)
    log.info("warmup_finished", steps=result.steps, solved=result.solved, greedy_solved=result.greedy_solved)
    return result


def _key(settings: Settings, config: LearnerConfig, demonstrations: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    parts = (FORMAT, settings.policy, settings.seed, config.warmup, str(torch.__version__))
    digest.update(msgspec.json.encode(parts))
    digest.update(demonstrations)
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read",
            why=str(error),
            fix="start the run with `tidegate up`, which writes its datasets",
        ) from error


def _decode(path: Path, text: bytes) -> list[WarmupExample]:
    try:
        return msgspec.json.Decoder(WarmupExample).decode_lines(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} contains a line that is no demonstration", why=str(error)) from error


def _load(path: Path, log: structlog.stdlib.BoundLogger) -> dict[str, Array] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body, digest = data[:-32], data[-32:]
    if hashlib.blake2b(body, digest_size=32).digest() != digest:
        log.warning("warmup_cache_corrupt", path=str(path), action="warming up again")
        return None
    return cast("dict[str, Array]", _safetensors.load(body))


def _save(path: Path, policy: dict[str, Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = cast("bytes", _safetensors.save(policy))
    replace_file(path, body + hashlib.blake2b(body, digest_size=32).digest())
