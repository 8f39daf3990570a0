"""A version of a language model as a folder for transformers (all weights) or PEFT (adapters apart), with its card.

The folder is written beside its place and renamed, so that it is whole or not there.
"""

import shutil
from pathlib import Path

from tidegate.cli.policy.model_card import model_card, read_facts
from tidegate.core.errors import ConfigError
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.models.model_folder import folder_digest, pretrained_folder
from tidegate.runtime.loading import load

README = "README.md"
# They load torch, which the other forms of a policy do not need: light images and installations have none.
LIBRARY = "tidegate.models.transformers_folders"
TOKENIZERS = "tidegate.models.language_models:open_tokenizer"
MERGED = "All weights, as transformers loads them: `AutoModelForCausalLM.from_pretrained(folder)`."
ADAPTED = "All weights, with the trained adapters added, as transformers loads them."
APART = "The trained adapters alone, as PEFT loads them: `PeftModel.from_pretrained(base, folder)`."
CHARACTERS = "A character model, as GPT-2 of transformers, with its alphabet as the tokenizer."


def write_folder(stored: StoredPolicy, to: Path, *, adapters: bool) -> None:
    """Write the folder. ``adapters``: the adapters apart from their model, instead of both merged.

    Raises:
        ConfigError: the policy is no language model, has no adapters, its base model is missing or another one, or the
            folder exists already or cannot be written.
        RecordError: the tensors are not of the run file's model.
    """
    policy = stored.file.policy
    _check(stored, to, adapters=adapters)
    base = "" if policy.kind == "char_lm" else policy.path
    unfinished = to.with_name(f".{to.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        form = _write_model(stored, unfinished, adapters=adapters)
        card = model_card(stored, read_facts(stored), base=base, form=form)
        (unfinished / README).write_text(card, encoding="utf-8")
        unfinished.rename(to)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written", why=str(error), fix="name another folder with --to"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check(stored: StoredPolicy, to: Path, *, adapters: bool) -> None:
    policy = stored.file.policy
    if stored.file.workload.kind == "segments":
        raise ConfigError(
            "The policy is no language model",
            why=f"policy.kind is {policy.kind}",
            fix="write it to one file: -o policy.onnx or policy.safetensors",
        )
    if adapters and not (policy.kind == "transformers" and policy.lora.rank):
        raise ConfigError(
            "The run trained no adapters", why="all weights were trained", fix="leave out --adapters"
        )
    if to.exists():
        raise ConfigError(f"{to} exists already", fix="name a folder that does not exist, or delete it")


def _write_model(stored: StoredPolicy, folder: Path, *, adapters: bool) -> str:
    """Write everything but the card; returns what it is."""
    policy, sampler = stored.file.policy, stored.file.workload.sampler
    if policy.kind == "char_lm":
        parts = load(f"{LIBRARY}:char_model")(policy, stored.tensors)
        parts.write(folder, sampler, stop_ids=sorted(load(TOKENIZERS)(policy).stop_ids))
        return CHARACTERS
    base = pretrained_folder(policy.path)
    if stored.base_digest and folder_digest(base) != stored.base_digest:
        raise ConfigError(
            f"policy.path {policy.path} is not the model that the adapters were trained on",
            why=f"its digest is {folder_digest(base)}, and theirs is {stored.base_digest}",
            fix="put the model of the run there; `tidegate model` prints a digest",
        )
    if adapters:
        load(f"{LIBRARY}:write_adapters")(folder, stored.tensors, policy.lora, base=policy.path)
        return APART
    stop_ids = sorted(load(TOKENIZERS)(policy).stop_ids)
    parts = load(f"{LIBRARY}:merged_model")(policy, stored.tensors, base=base)
    parts.write(folder, sampler, stop_ids=stop_ids)
    return ADAPTED if policy.lora.rank else MERGED
