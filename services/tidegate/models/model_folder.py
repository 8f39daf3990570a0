"""Which folder a policy's ``path`` means, whether a model can be in it, and what tells it from others. No torch."""

from importlib.util import find_spec
from pathlib import Path

import xxhash

from tidegate.core.errors import ConfigError
from tidegate.models.smollm2 import SMOLLM2, make_smollm2_folder

# Where converted models are kept, relative to the working folder, for who was told no other place.
CACHE_DIR = Path(".tidegate/cache")

LIBRARIES = ("transformers", "peft")
WEIGHTS_PATTERN = "*.safetensors"
CONFIG_FILE = "config.json"
DIGEST_BLOCK_BYTES = 1 << 22


def pretrained_folder(path: str, *, cache_dir: Path | None = None) -> Path:
    """The folder that ``policy.path`` means; ``smollm2`` is made if it is not there yet.

    Raises:
        ConfigError: nothing is named, or a library is missing.
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
    return make_smollm2_folder(cache_dir or CACHE_DIR) if path == SMOLLM2 else Path(path)


def check_folder(folder: Path) -> None:
    """Whether a folder can hold a model.

    Raises:
        ConfigError: it is missing, or has no config or no safetensors.
    """
    if not (folder / CONFIG_FILE).is_file() or not any(folder.glob(WEIGHTS_PATTERN)):
        raise ConfigError(
            f"policy.path {folder} is no folder of a pretrained model",
            why=f"{CONFIG_FILE} and weights as {WEIGHTS_PATTERN} are looked for there",
            fix="set policy.path to such a folder, which actors and learner can all read, or to smollm2",
        )


def base_digest(kind: str, *, path: str, lora_rank: int) -> str:
    """What tells the model that a policy's adapters are put on; empty for a policy without, which is all weights.

    ``kind``, ``path`` and ``lora_rank`` are the run file's ``policy``.

    The learner publishes it and actors hold it against their own, as adapters fit any base of the same size and mean
    nothing on another one.

    Raises:
        ConfigError: ``path`` names no model.
    """
    return folder_digest(pretrained_folder(path)) if kind == "transformers" and lora_rank else ""


def folder_digest(folder: Path) -> str:
    """What tells one pretrained model from another: its config's and its weights' bytes, as 32 hex digits.

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
