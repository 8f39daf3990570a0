"""Changes the run file of a running platform, as far as its services take it over (``runtime.live_settings``).

The file is ``run.json`` of the run folder; each service looks at it once a second. In a cluster the run file is the
chart's, so `helm upgrade` changes it.
"""

import os
from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate.core.errors import ConfigError, FolderInUseError
from tidegate.launch.cluster import is_cluster
from tidegate.launch.overrides import apply_overrides
from tidegate.launch.run_file_source import live_sections
from tidegate.launch.run_folder import RUN_JSON, read_record
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.files import lock_file, replace_file

# Sections that running services take over, as a run file has them.
LIVE = ("staleness", "slos", "admission.scaling")
LOCK = ".set.lock"


def change_run_file(folder: Path, overrides: list[str]) -> dict[str, tuple[Any, Any]]:
    """Write ``overrides`` (path.to.key=value) into the run file; returns what each changed setting was and is.

    Raises:
        ConfigError: the run is in a cluster, a setting needs a restart, or a run could not start with it.
        FolderInUseError: another process changes the run file at this moment.
    """
    if is_cluster(folder):
        given = " ".join(f"--set run.{each}" for each in overrides)
        raise ConfigError(
            "The run file of a run in a cluster is in the release's values",
            fix=f"`helm upgrade RELEASE CHART --reset-then-reuse-values {given}`; pods take it over without a restart",
        )
    lock = lock_file(folder / LOCK)
    if lock is None:
        raise FolderInUseError(
            f"Another process changes the settings of {folder}", fix="run the command again when it is done"
        )
    try:
        record = read_record(folder)
        before = parse_plan(record.run_file, source=str(folder / RUN_JSON))
        after = parse_plan(apply_overrides(record.run_file, overrides), source="the changed run file")
        changed = changes(before, after)
        if changed:
            written = msgspec.structs.replace(
                record,
                run_file=after.document(),
                # The broker's passwords are in no run.json.
                broker=msgspec.structs.replace(record.broker, user="", password=""),
            )
            text = msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n"
            replace_file(folder / RUN_JSON, text, mode=0o600, durable=True)
        return changed
    finally:
        os.close(lock)


def changes(before: RunPlan, after: RunPlan) -> dict[str, tuple[Any, Any]]:
    """What each setting of the live sections that differs was and is, by its path in a run file.

    Raises:
        ConfigError: another setting differs.
    """
    old, new = _flat(before.document()), _flat(after.document())
    changed = {
        path: (old.get(path), new.get(path))
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path)
    }
    fixed = sorted(path for path in changed if not path.startswith(tuple(f"{live}." for live in LIVE)))
    if fixed:
        raise ConfigError(
            f"`{fixed[0]}` cannot change while the run works",
            why=f"its services read it when they start; only {', '.join(LIVE)} are taken over without a restart",
            fix=f"stop the run, and continue it with `tidegate up RUN.yaml --dir FOLDER --set {fixed[0]}=VALUE`",
        )
    assert bool(changed) == (live_sections(before) != live_sections(after)), (
        "services read what is compared here"
    )
    return dict(sorted(changed.items()))


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Each leaf of nested mappings by its path; a list is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        flat |= _flat(inner, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat
