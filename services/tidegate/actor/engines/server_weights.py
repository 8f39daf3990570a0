"""Policies as folders that an inference server loads: whole checkpoints, adapters merged, the head a tensor of its own.

Servers tie the head to the embedding when a checkpoint says so, and at least one then keeps the old head when its
weights are replaced in place. So this module never writes tied weights: the folder that a server starts from has a
separate head, and so has every update.

Adapters are merged into the weights and not loaded as adapters: one path for every kind of training, full speed on the
server, no limit on ranks and layers. The cost is writing the whole model for each version and, in bfloat16, rounding of
the merged weights.

As a program it writes the folder to start a server from: ``python -m tidegate.actor.engines.server_weights MODEL
FOLDER [DTYPE]``.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] (safetensors)
from torch import Tensor

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array, PolicySnapshot
from tidegate.models.finite import check_finite
from tidegate.models.model_folder import CONFIG_FILE, WEIGHTS_PATTERN, check_folder
from tidegate.models.transformers_lm import DTYPES, VALUE_HEAD_PREFIX
from tidegate.runtime.config import LoraConfig

Dtype: TypeAlias = Literal["float32", "bfloat16"]

START = "start"
WEIGHTS_FILE = "model.safetensors"
HEAD = "lm_head.weight"
EMBEDDING_SUFFIX = "embed_tokens.weight"
LORA_A, LORA_B, WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"
# Logits in bfloat16 are off by up to 0.06 at size 20; vLLM reads from the config that its head is to be exact.
EXACT_HEAD = {"head_dtype": "float32"}
# Further files of a model's folder that a server may read (tokenizer, chat template, generation).
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
# Suffix of an unfinished folder; no server loads it, and the next start removes it.
UNFINISHED = ".unfinished"


class ServerWeights:
    """The folders of one server: the one it starts from, the version it serves, and the next one during its probe.

    ``drop_all_but`` frees the others, so there are at most three, and one unfinished.
    """

    def __init__(self, model: Path, root: Path, *, lora: LoraConfig, dtype: Dtype) -> None:
        """``model``: the pretrained folder that policies were trained from. Writes the folder to start from.

        Raises:
            ConfigError: ``model`` holds no model, or one without a plain head.
        """
        check_folder(model)
        self._root = root.absolute()
        self._lora = lora
        self._dtype: Dtype = dtype
        self._base = read_untied(model)
        shutil.rmtree(self._root, ignore_errors=True)  # left by a previous actor
        self._root.mkdir(parents=True)
        self.start = self._root / START
        write_folder(self.start, self._base, model=model, dtype=dtype)

    def check(self, snapshot: PolicySnapshot) -> None:
        """Check that a policy's tensors belong to the model and are finite.

        Raises:
            RecordError: one does not, or is not finite; the message names it.
        """
        for name, array in snapshot.tensors.items():
            self._check_tensor(name, array)
        check_finite(snapshot)

    def write(self, snapshot: PolicySnapshot) -> Path:
        """Write a policy as a folder, atomically; takes time in proportion to the model's size.

        Raises:
            RecordError: a tensor does not belong to the model.
            OSError: the disk is full or not writable.
        """
        folder = self._root / str(snapshot.version)
        if not folder.exists():
            merged = self.merge(snapshot.tensors)
            write_folder(folder, merged, model=self.start, dtype=self._dtype)
        return folder

    def merge(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """The whole model with a policy's tensors: full training replaces the model's own, adapters are added to them.

        Raises:
            RecordError: a tensor does not belong to the model.
        """
        merged = dict(self._base)
        for name, array in arrays.items():
            self._check_tensor(name, array)
            if name.startswith(VALUE_HEAD_PREFIX) or name.endswith(LORA_B):
                continue
            tensor = torch.tensor(array)
            if name.endswith(LORA_A):
                target = name.removesuffix(LORA_A) + WEIGHT
                other = torch.tensor(arrays[name.removesuffix(LORA_A) + LORA_B])
                scale = self._lora.alpha / self._lora.rank
                merged[target] = self._base[target].float() + scale * (other @ tensor)
            else:
                merged[name] = tensor
        if HEAD not in arrays and self._is_tied:
            merged[HEAD] = merged[self._embedding].clone()
        return merged

    def drop_all_but(self, *kept: Path) -> None:
        """Remove the folders of all other versions; keep the one to start from."""
        for folder in self._root.iterdir():
            if folder.is_dir() and folder not in kept and folder != self.start:
                shutil.rmtree(folder)

    @property
    def _embedding(self) -> str:
        return next(name for name in self._base if name.endswith(EMBEDDING_SUFFIX))

    @property
    def _is_tied(self) -> bool:
        return self._base[HEAD] is self._base[self._embedding]

    def _check_tensor(self, name: str, array: Array) -> None:
        if name.startswith(VALUE_HEAD_PREFIX):
            return
        layer = name.removesuffix(LORA_A).removesuffix(LORA_B)
        target = name if layer == name else layer + WEIGHT
        if target not in self._base:
            raise _unfit(name, "the model has no such weights")
        num_out, num_in = (*self._base[target].shape, 1)[:2]
        wanted: tuple[int, ...] = tuple(self._base[target].shape)
        if name.endswith(LORA_A):
            wanted = (self._lora.rank, num_in)
        elif name.endswith(LORA_B):
            wanted = (num_out, self._lora.rank)
        if tuple(array.shape) != wanted:
            raise _unfit(name, f"its shape is {tuple(array.shape)}, not {wanted}")


def read_untied(model: Path) -> dict[str, Tensor]:
    """All tensors of a folder, memory-mapped; a tied head also appears under its own name, as the same tensor.

    Raises:
        ConfigError: there is neither a head nor an embedding to tie it to.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(model.glob(WEIGHTS_PATTERN)):
        opened: Any = safe_open(path, framework="pt")
        with opened as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    tied = bool(_config(model).get("tie_word_embeddings", False))
    if HEAD not in tensors or tied:
        embedding = next((name for name in tensors if name.endswith(EMBEDDING_SUFFIX)), None)
        if embedding is None:
            raise ConfigError(
                f"The model of {model} has neither {HEAD!r} nor an embedding that could be its head",
                fix="use a model of the Llama family's layout, or the torch engine",
            )
        tensors[HEAD] = tensors[embedding]
    return tensors


def write_folder(folder: Path, tensors: Mapping[str, Tensor], *, model: Path, dtype: Dtype) -> None:
    """Write a checkpoint that a server can load: atomically, every tensor separate, in ``dtype``.

    ``model``: the folder to copy config and tokenizer from.

    Raises:
        OSError: the disk is full or not writable.
    """
    unfinished = folder.with_name(UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for pattern in SMALL_FILES:
        for path in model.glob(pattern):
            if not path.name.endswith(".index.json"):  # the shards of a model that is written as one file
                shutil.copyfile(path, unfinished / path.name)
    config = _config(model) | {"tie_word_embeddings": False, "dtype": dtype} | EXACT_HEAD
    (unfinished / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    # The writer refuses tensors that share memory, so the separate head is a copy.
    kept = {name: tensor.to(DTYPES[dtype]).contiguous() for name, tensor in tensors.items()}
    kept[HEAD] = kept[HEAD].clone()
    try:
        save_file(kept, unfinished / WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk is one, and no OSError
        raise OSError(f"{folder} cannot be written: {error}") from error
    unfinished.rename(folder)


def _config(model: Path) -> dict[str, Any]:
    return msgspec.json.decode((model / CONFIG_FILE).read_bytes(), type=dict[str, Any])


def _unfit(name: str, problem: str) -> RecordError:
    return RecordError(
        f"These parameters do not fit the server's model: tensor {name!r}: {problem}",
        why="they come from another model, or other adapters",
        fix="use the policy section that they were trained with",
    )


def _main(arguments: list[str]) -> int:
    if len(arguments) not in {2, 3} or (arguments[2:] and arguments[2] not in DTYPES):
        sys.stderr.write("Usage: python -m tidegate.actor.engines.server_weights MODEL FOLDER [DTYPE]\n")
        return 1
    model, folder = Path(arguments[0]), Path(arguments[1])
    check_folder(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    dtype: Dtype = "float32" if arguments[2:] == ["float32"] else "bfloat16"
    write_folder(folder, read_untied(model), model=model, dtype=dtype)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
