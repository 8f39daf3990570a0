"""Folders to begin one's own code from: those of ``examples/new``, which run and are tested as they are."""

import re
import shutil
from pathlib import Path

from tidegate.core.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
# Of a wheel, and of a checkout.
FOLDERS = (PACKAGE / "templates", PACKAGE.parents[1] / "examples" / "new")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
RENAMED = ("run.yaml", "README.md")
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*")


def kinds() -> list[str]:
    """What a folder can be begun for."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    return [] if folder is None else sorted(each.name for each in folder.iterdir() if each.is_dir())


def write_template(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a kind into a new folder, with a run of this name; returns them.

    Raises:
        ConfigError: there is no such kind, the name is none of a run, or the folder is not empty.
    """
    if kind not in kinds():
        raise ConfigError(f"There is no template {kind!r}", fix=f"use one of: {', '.join(kinds())}")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a run",
            fix="use 1-40 lower-case letters, digits and inner dashes",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty", fix="choose another name or --dir")
    source = next(each for each in FOLDERS if each.is_dir()) / kind
    shutil.copytree(source, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
    for file in RENAMED:
        path = folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(f"my-{kind}", name), encoding="utf-8")
    return sorted(path for path in folder.rglob("*") if path.is_file())
