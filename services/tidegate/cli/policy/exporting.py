"""A policy as one file: safetensors for any policy, ONNX for policies of segments. Both carry the same metadata.

Metadata are texts by these keys:

- ``tidegate.format``: 1. ``tidegate.run`` and ``tidegate.version``: where the policy comes from.
- ``tidegate.policy``: the run file's ``policy``, as JSON.
- ``tidegate.workload``: of the run file's ``workload`` what decides on the observation: ``env``, ``env_kwargs``,
  ``wrappers``, ``frame_stack``, as JSON.
- ``tidegate.environment`` (segments): the spaces of observations and actions, as JSON; null is a missing bound.
- ``tidegate.base_digest`` (adapters): the digest of the model that they belong to (``tidegate model``).
- ``tidegate.audit`` and ``tidegate.ledger_head``: the run's accounting at this moment, and the newest digest of its
  ledger's hash chain, which ``tidegate audit --verify --head`` takes. Missing where the ledger is not in the folder.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import safetensors.numpy

from tidegate.cli.accounting import ledger_path, read_accounting
from tidegate.cli.audit import one_line
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.spaces import description_to_json
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.runtime.files import replace_file
from tidegate.trajectory_store.verifying import read_head

FORMAT = "1"
PREPROCESSING = ("env", "env_kwargs", "wrappers", "frame_stack")

_safetensors = cast("Any", safetensors.numpy)  # ships with partial types


def metadata_of(stored: StoredPolicy) -> dict[str, str]:
    """What a file says about its policy."""
    workload = stored.file.workload
    texts = {
        "tidegate.format": FORMAT,
        "tidegate.run": stored.run,
        "tidegate.version": str(stored.version),
        "tidegate.policy": _json(stored.file.policy),
        "tidegate.workload": _json({name: getattr(workload, name) for name in PREPROCESSING}),
    }
    if workload.kind == "segments":
        texts["tidegate.environment"] = description_to_json(stored.description()).decode()
    if ledger_path(stored.folder).is_file():
        texts["tidegate.audit"] = one_line(read_accounting(stored.folder))
        texts["tidegate.ledger_head"] = read_head(ledger_path(stored.folder))
    if stored.base_digest:
        texts["tidegate.base_digest"] = stored.base_digest
    return texts


def to_safetensors(stored: StoredPolicy) -> bytes:
    """All tensors of the version by their published names, statistics of a normaliser among them."""
    tensors = {name: np.asarray(tensor, order="C") for name, tensor in stored.tensors.items()}
    return _safetensors.save(tensors, metadata_of(stored))


def to_onnx(stored: StoredPolicy) -> bytes:
    """Observations to greedy actions, as ``models.onnx_policy`` writes it.

    Raises:
        ConfigError: the policy is a language model.
        NotFoundError: onnx is not installed.
    """
    if stored.file.workload.kind != "segments":
        raise ConfigError(
            "A language model is not exported to ONNX",
            why="its engines read safetensors: all weights, or the adapters with the digest of their model",
            fix="write it to a file that ends in .safetensors",
        )
    try:
        from tidegate.models.onnx_policy import policy_graph  # an extra, which only this needs
    except ImportError as error:
        raise NotFoundError(
            "ONNX files need onnx and onnxruntime",
            why=str(error),
            fix="install them: pip install 'tidegate[images]', or write a file that ends in .safetensors",
        ) from error
    return policy_graph(stored.policy(), stored.tensors, metadata_of(stored))


WRITERS: Mapping[str, Callable[[StoredPolicy], bytes]] = {".safetensors": to_safetensors, ".onnx": to_onnx}


def write_policy(stored: StoredPolicy, path: Path) -> int:
    """Write the file, whole or not at all; returns its size in bytes.

    Raises:
        ConfigError: its name ends in no format, the policy has none in it, or it cannot be written.
    """
    check_format(path)
    data = WRITERS[path.suffix](stored)
    try:
        replace_file(path, data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written", why=str(error), fix="name another with -o") from error
    return len(data)


def check_format(path: Path) -> None:
    """Refuse a name that ends in no format.

    Raises:
        ConfigError: it does not.
    """
    if path.suffix not in WRITERS:
        raise ConfigError(
            f"{path} names no format",
            why="the end of the name decides between them",
            fix=f"let it end in {' or '.join(WRITERS)}",
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
