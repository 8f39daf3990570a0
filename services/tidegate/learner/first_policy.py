"""The starting policy of a language-model run: a supervised warm-up, computed once and then read again.

A small model's is kept in a cache of all runs, a pretrained model's in the run folder. Its key is a digest of all that
the result depends on (network, settings, seed, demonstrations), so a changed dataset makes a new policy, an unchanged
one costs nothing, and a learner that was killed before its first checkpoint begins with the same version.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import torch

from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.core.json_text import NOT_JSON
from tidegate.core.records import Array
from tidegate.learner.checkpoint_tensors import FileEntry, read_tensors, write_tensors
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.warmup import (
    ADAPTERS_LEARNING_RATE,
    WHOLE_LEARNING_RATE,
    WarmupProgress,
    fine_tune,
    supervised_warmup,
)
from tidegate.learner.warmup_pairs import WarmupExample, encode_examples
from tidegate.learner.warmup_record import WarmupRecord
from tidegate.learner.warmup_settings import DEMONSTRATIONS_FILE, OF_TASK
from tidegate.models.char_lm import CharLm
from tidegate.models.language_models import open_tokenizer
from tidegate.models.model_folder import folder_digest, pretrained_folder
from tidegate.runtime.config import Settings
from tidegate.runtime.files import replace_file

# Incremented when the warm-up computes another result from the same inputs.
FORMAT = 3
# One in this many distinct demonstrations is held out for evaluation.
SET_ASIDE_ONE_IN = 10


class _Kept(msgspec.Struct, frozen=True):
    """The file beside the tensors, written after them."""

    tensors: FileEntry
    record: WarmupRecord


def read_examples(path: Path) -> list[WarmupExample]:
    """The demonstrations of a run folder.

    Raises:
        ConfigError: the file is missing, or contains something else.
    """
    return _decode(path, _read(path))


def warm_up(
    trainer: LanguageModelTrainer,
    settings: Settings,
    config: LearnerConfig,
    *,
    report: Callable[[WarmupProgress], None],
    between: Callable[[int], None] = lambda _: None,
    log: structlog.stdlib.BoundLogger,
) -> WarmupRecord | None:
    """Warm up the trainer's model in place; None for a pretrained one that the run file warms up on nothing.

    ``between`` is called often with the number of steps of a pretrained model, and may raise to end it.

    Raises:
        ConfigError: a dataset is missing or cannot be read, or has too few or too long demonstrations.
        WarmupError: ``warmup.max_steps`` were not enough, or the model computes no numbers.
    """
    if not config.warmup.applies_to(settings.policy.kind):
        return None
    data = Path(settings.data_dir) / "data"
    text = _read(data / DEMONSTRATIONS_FILE)
    place = _place(settings, config, text)
    kept = _load(place, log) if place else None
    if kept is not None:
        policy, record = kept
        trainer.begin_from(policy)
        log.info("warmup_from_cache", path=str(place))
        return record
    examples = _decode(data / DEMONSTRATIONS_FILE, text)
    if isinstance(trainer.model, CharLm):
        record = _small(trainer.model, examples, settings, config, report=report)
    else:
        record = _pretrained(trainer, examples, settings, config, report=report, between=between, log=log)
    policy = trainer.policy()
    trainer.begin_from(policy)
    if place:
        try:
            _save(place, policy, record)
        except OSError as error:  # computed again after a restart, with the same result
            log.warning("warmup_not_kept", path=str(place), error=str(error))
    log.info("warmup_finished", **msgspec.to_builtins(record))
    if record.steps == 0:
        log.warning(
            "warmup_without_effect",
            why="no step lowered the loss on held-out demonstrations, so the first version is the model as it was",
            fix="lower learner.warmup.learning_rate, or raise learner.warmup.patience",
        )
    return record


def _small(
    model: CharLm,
    examples: list[WarmupExample],
    settings: Settings,
    config: LearnerConfig,
    *,
    report: Callable[[WarmupProgress], None],
) -> WarmupRecord:
    set_aside = list(dict.fromkeys(examples))[::SET_ASIDE_ONE_IN]
    kept_back = frozenset(set_aside)
    trained = [example for example in examples if example not in kept_back]
    result = supervised_warmup(
        model,
        trained,
        set_aside,
        config.warmup,
        generator=torch.Generator().manual_seed(settings.seed),
        report=report,
    )
    return WarmupRecord(
        demonstrations=config.warmup.demonstrations or OF_TASK,
        pairs=len(trained),
        steps=result.steps,
        tokens=result.tokens,
        solved=result.solved,
    )


def _pretrained(
    trainer: LanguageModelTrainer,
    examples: list[WarmupExample],
    settings: Settings,
    config: LearnerConfig,
    *,
    report: Callable[[WarmupProgress], None],
    between: Callable[[int], None],
    log: structlog.stdlib.BoundLogger,
) -> WarmupRecord:
    policy, warmup = settings.policy, config.warmup
    set_aside = frozenset(list(dict.fromkeys(examples))[::SET_ASIDE_ONE_IN])
    encoded = encode_examples(open_tokenizer(policy), examples, context_length=policy.context_length)
    trained = [each for each, example in zip(encoded, examples, strict=True) if example not in set_aside]
    first = {example: each for each, example in zip(encoded, examples, strict=True) if example in set_aside}
    log.info("warmup_started", pairs=len(trained), heldout=len(first))
    default = ADAPTERS_LEARNING_RATE if policy.lora.rank else WHOLE_LEARNING_RATE
    result = fine_tune(
        trainer.model,
        trainer.warmup_optimizer(
            learning_rate=warmup.learning_rate or default, weight_decay=warmup.weight_decay
        ),
        trained,
        list(first.values()),
        warmup,
        pass_tokens=trainer.pass_tokens,
        generator=torch.Generator().manual_seed(settings.seed),
        report=report,
        between=between,
    )
    return WarmupRecord(
        demonstrations=warmup.demonstrations,
        pairs=len(trained),
        steps=result.steps,
        tokens=result.tokens,
        loss_before=result.loss_before,
        loss_after=result.loss_after,
    )


def _place(settings: Settings, config: LearnerConfig, demonstrations: bytes) -> Path | None:
    """Where the result is kept, without a suffix; None for nowhere."""
    if settings.policy.kind == "char_lm" and not config.cache_dir:
        return None
    pretrained = settings.policy.kind != "char_lm"
    folder = Path(settings.data_dir) / "data" if pretrained else Path(config.cache_dir)
    base = folder_digest(pretrained_folder(settings.policy.path)) if pretrained else ""
    parts = (FORMAT, settings.policy, base, settings.seed, config.warmup, str(torch.__version__))
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode(parts))
    digest.update(demonstrations)
    return folder / f"warmup-{digest.hexdigest()}"


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


def _load(place: Path, log: structlog.stdlib.BoundLogger) -> tuple[dict[str, Array], WarmupRecord] | None:
    try:
        kept = msgspec.json.decode(place.with_suffix(".json").read_bytes(), type=_Kept)
        policy, entry = read_tensors(place.with_suffix(".safetensors"))
        if entry == kept.tensors:
            return policy, kept.record
    except FileNotFoundError:
        return None
    except (CorruptionError, *NOT_JSON):
        pass
    log.warning("warmup_cache_corrupt", path=str(place), action="warming up again")
    return None


def _save(place: Path, policy: dict[str, Array], record: WarmupRecord) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    tensors, described = place.with_suffix(".safetensors"), place.with_suffix(".json")
    # The description last: its presence means that the tensors are whole. A run may read them meanwhile.
    unfinished = tensors.with_suffix(".new")
    entry = write_tensors(unfinished, policy)
    unfinished.replace(tensors)
    replace_file(described, msgspec.json.encode(_Kept(entry, record)))
