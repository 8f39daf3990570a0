"""Resolves a policy's ``path`` to a model folder, checks it, and computes its digest. No torch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec
import xxhash

from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.core.json_text import NOT_JSON
from tidegate.core.sizing.shapes import ModelShape, shape_of_config
from tidegate.models.safetensors_header import read_header
from tidegate.models.smollm2 import SMOLLM2, make_smollm2_folder

# Default cache of converted models, relative to the working folder.
CACHE_DIR = Path(".tidegate/cache")

LIBRARIES = ("transformers", "peft")
WEIGHTS_PATTERN = "*.safetensors"
CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
DIGEST_BLOCK_BYTES = 1 << 22


class _ModelConfig(msgspec.Struct, frozen=True):
    """What any model's config says."""

    model_type: str


class _WeightIndex(msgspec.Struct, frozen=True):
    """File of each tensor, where there are several files."""

    weight_map: dict[str, str] = {}


def pretrained_folder(path: str, *, cache_dir: Path | None = None) -> Path:
    """The folder of ``policy.path``; ``smollm2`` is created if missing.

    Raises:
        ConfigError: the path is empty, or a library is missing.
    """
    missing = next((name for name in LIBRARIES if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(
            f"policy.kind transformers needs the package {missing}, which is missing",
            fix="install tidegate with its extra llm: `make install` does",
        )
    if not path:
        raise ConfigError(
            "policy.kind transformers needs policy.path",
            fix="set it to the folder of a pretrained model, or to smollm2",
        )
    return make_smollm2_folder(cache_dir or CACHE_DIR) if path == SMOLLM2 else Path(path).expanduser()


def check_folder(folder: Path) -> None:
    """Check that a folder can hold a model.

    Raises:
        ConfigError: it is missing, or has no config or no safetensors.
    """
    if not (folder / CONFIG_FILE).is_file() or not any(folder.glob(WEIGHTS_PATTERN)):
        raise ConfigError(
            f"policy.path {folder} is no folder of a pretrained model",
            why=f"it has no {CONFIG_FILE} or no weights ({WEIGHTS_PATTERN})",
            fix="set policy.path to such a folder, which actors and learner can all read, or to smollm2",
        )


def check_files(folder: Path) -> int:
    """Check that a model's config can be read and that its weights are complete; returns their size in bytes.

    Reads the headers of the files and no weights.

    Raises:
        ConfigError: the folder holds no model, its config is no JSON object with a ``model_type``, or a file of weights
            is missing, cut short or no safetensors.
    """
    check_folder(folder)
    _read_json(folder / CONFIG_FILE, _ModelConfig)
    files = {path.name for path in folder.glob(WEIGHTS_PATTERN)}
    if (folder / INDEX_FILE).is_file():
        named = set(_read_json(folder / INDEX_FILE, _WeightIndex).weight_map.values())
        if missing := sorted(named - files):
            raise ConfigError(
                f"policy.path {folder} lacks {len(missing)} of its {len(named)} files of weights",
                why=f"{INDEX_FILE} names {missing[0]}, which is not there",
                fix="copy the whole folder again",
            )
    return sum(_checked_size(folder / name) for name in sorted(files))


def shape_of_folder(folder: Path) -> ModelShape:
    """The shape of the model in a folder.

    Raises:
        ConfigError: it has no config.json, or one that describes no decoder-only language model.
    """
    path = folder / CONFIG_FILE
    try:
        config: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, *NOT_JSON) as error:
        raise ConfigError(
            f"{path} cannot be read",
            why=str(error),
            fix="give the folder of a pretrained model, or a size such as 7b",
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no object", fix="give the folder of a pretrained model")
    return shape_of_config(cast("dict[str, Any]", config), name=folder.name)


def _read_json(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *NOT_JSON) as error:
        raise ConfigError(
            f"{path} of policy.path cannot be read",
            why=str(error),
            fix="copy the model's folder again; policy.path names a model as transformers saves it",
        ) from error


def _checked_size(path: Path) -> int:
    """The size of a safetensors file whose header and length agree."""
    try:
        wanted_bytes = read_header(path).file_bytes()
    except CorruptionError as error:
        raise ConfigError(
            f"{path} is no file of safetensors",
            why="its header cannot be read; a file of some hundred bytes is a pointer of Git LFS",
            fix="download the file itself, for example with `git lfs pull`",
        ) from error
    size_bytes = path.stat().st_size
    if size_bytes < wanted_bytes:
        raise ConfigError(
            f"{path} is cut short",
            why=f"it has {size_bytes} bytes, and its header describes {wanted_bytes}",
            fix="copy or download it again",
        )
    return size_bytes


def base_digest(kind: str, *, path: str, lora_rank: int) -> str:
    """The digest of the model that a policy's adapters belong to; empty for a policy without adapters.

    ``kind``, ``path`` and ``lora_rank`` are the run file's ``policy``.

    The learner publishes it and actors compare it with their own: adapters fit any base of the same size but are valid
    on one.

    Raises:
        ConfigError: ``path`` holds no model.
    """
    return folder_digest(pretrained_folder(path)) if kind == "transformers" and lora_rank else ""


def folder_digest(folder: Path) -> str:
    """Digest of a pretrained model's config and weights, as 32 hex digits.

    Reads the whole folder, at some 5 GB/s once it is in memory.

    Raises:
        ConfigError: there is no model in it.
    """
    check_folder(folder)
    digest = xxhash.xxh3_128()
    for path in (folder / CONFIG_FILE, *sorted(folder.glob(WEIGHTS_PATTERN))):
        digest.update(f"{path.name}:{path.stat().st_size};".encode())
        with path.open("rb") as file:
            while block := file.read(DIGEST_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()
