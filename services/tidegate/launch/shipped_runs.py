"""The run files that come with the package: ``tidegate up cartpole`` needs no checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# Of a wheel, and of a checkout.
FOLDERS = (PACKAGE / "run_files", PACKAGE.parents[1] / "runs")


def shipped_runs() -> dict[str, Path]:
    """The run files by name."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def is_name(path: Path) -> bool:
    """Whether a command's argument may name a shipped run file: it has no folder and no suffix, and no file has it."""
    return path.name == str(path) and not path.suffix and not path.exists()
