"""A run that begins from the policy of another: ``begin_from`` of its run file, before it starts.

A fork continues a run, with its optimiser and its numbers. This is a new run, perhaps of another task, whose first
version has the parameters of a version of the parent.
"""

import os
from pathlib import Path

from tidegate.core.errors import ConfigError
from tidegate.launch.named_version import NEWEST
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.stored_policy import StoredPolicy, stored_version
from tidegate.learner.checkpoint_tensors import write_tensors
from tidegate.models.model_folder import base_digest
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.own_code.references import find_path

# Of learner.begun_policy, which imports torch.
BEGUN_FILE = "begun_policy.safetensors"


def parent_of(plan: RunPlan) -> StoredPolicy | None:
    """The version that the run begins from; None where it begins from none. ``FOLDER`` or ``FOLDER@VERSION``.

    Raises:
        NotFoundError: there is no such run, or it keeps no such version.
        ConfigError: it is another policy.
    """
    written = plan.file.begin_from
    if not written:
        return None
    place, version = split_place(written)
    stored = stored_version(find_path(place, folder=plan.file.files_dir), version)
    _check_alike(plan.file.policy, stored)
    return stored


def split_place(written: str) -> tuple[str, str]:
    """The folder and the version, which is ``newest``, ``best`` or as ``lineage@step``."""
    head, _, last = written.rpartition("@")
    if not head:
        return written, NEWEST
    if not last.isdigit():
        return head, last
    folder, _, lineage = head.rpartition("@")
    return (folder, f"{lineage}@{last}") if folder else (written, NEWEST)


def write_begun_policy(plan: RunPlan, folder: Path) -> str:
    """Write the policy that a new run begins from into its folder; returns ``RUN at VERSION``, empty without one.

    Raises:
        NotFoundError: there is no such run, or it keeps no such version.
        ConfigError: it is another policy.
    """
    stored = parent_of(plan)
    if stored is None:
        return ""
    data = folder / "data"
    if (data / BEGUN_FILE).exists():
        return f"{stored.run} at {stored.version}"  # a pod that started again
    data.mkdir(parents=True, exist_ok=True)
    unfinished = data / f"{BEGUN_FILE}.new"
    write_tensors(unfinished, stored.tensors)
    os.replace(unfinished, data / BEGUN_FILE)
    return f"{stored.run} at {stored.version}"


def _check_alike(policy: PolicyConfig, stored: StoredPolicy) -> None:
    if policy.kind != stored.file.policy.kind:
        raise ConfigError(
            f"begin_from names a {stored.file.policy.kind} policy, and policy.kind is {policy.kind}",
            fix="set policy as in the parent's run file",
        )
    base = base_digest(policy.kind, path=policy.path, lora_rank=policy.lora.rank)
    if base != stored.base_digest:
        raise ConfigError(
            f"begin_from names adapters of the model {stored.base_digest or 'none'!r}",
            why=f"policy.path is the model {base or 'none'!r}",
            fix="set policy.path and policy.lora as in the parent's run file",
        )
