"""Reader of run files: YAML from disk with the overrides of ``--set``, as a consistent plan."""

from pathlib import Path
from typing import Any, cast

from tidegate.core.errors import ConfigError
from tidegate.launch.overrides import apply_overrides, parse_yaml
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.shipped_runs import is_name, shipped_runs
from tidegate.models.smollm2 import SMOLLM2
from tidegate.runtime.own_code.references import find_path


def read_run_file(path: Path, overrides: list[str]) -> RunPlan:
    """Read a run file, apply the overrides, and check that it is consistent.

    ``path``: also the name of a run file that comes with the package, such as ``cartpole``. Its own files are those in
    the working directory.

    Raises:
        ConfigError: there is no such file, or a key, type, range or combination is wrong.
    """
    document = read_document(path, overrides)
    # Written out, so that the services, a resumed run and a fork find the same files.
    document["files_dir"] = str((path.parent / str(document.get("files_dir") or "")).resolve())
    _find_model(document)
    return parse_plan(document, source=str(_place(path)))


def _find_model(document: dict[str, Any]) -> None:
    """Write out the place of a model beside the run file, as the folder of own files is; else it stays as written."""
    policy = document.get("policy")
    path = cast("dict[str, Any]", policy).get("path") if isinstance(policy, dict) else None
    if not isinstance(path, str) or not path or path == SMOLLM2 or Path(path).expanduser().is_dir():
        return
    found = find_path(path, folder=document["files_dir"])
    if found.is_dir():
        cast("dict[str, Any]", policy)["path"] = str(found)


def read_document(path: Path, overrides: list[str]) -> dict[str, Any]:
    """The document of a run file with the overrides, before its types are known.

    Raises:
        ConfigError: there is no such file, it is no YAML, or an override is none.
    """
    path = _place(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Run file {path} cannot be read",
            why=getattr(error, "strerror", None) or str(error),
            fix=f"name a run file, or one that comes with Tidegate: {', '.join(shipped_runs())}",
        ) from error
    raw = parse_yaml(text, source=str(path))
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no settings", fix="start from runs/cartpole.yaml")
    return apply_overrides(cast("dict[str, Any]", raw), overrides)


def _place(path: Path) -> Path:
    """The file itself, or of a name the one that comes with the package."""
    return (shipped_runs().get(str(path)) if is_name(path) else None) or path
