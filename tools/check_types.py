"""Type-check what changed since the last check that passed, and every module that imports it, directly or not.

Usage: python tools/check_types.py. Before the first check of a clone, what is as in the newest commit that ``origin``
has counts as checked, as its CI checks everything. Everything is checked after a change of the configuration or of the
locked packages, after a module was removed, and without an ``origin``. ``make types`` always checks everything, as
`make test` does.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PASSED = Path(".build/types.json")
# A change in one of these may change the types of any module.
EVERYWHERE = ("pyproject.toml", "locks/dev.txt", "tools/typings/**/*.pyi", "services/tidegate/v1/*.pyi")
# The folder of each top package, as imports name it.
PACKAGES = {
    "tidegate": "services/tidegate",
    "tests": "tests",
    "tools": "tools",
    "benchmarks": "benchmarks",
}


def main() -> int:
    """Check, and remember what passed; returns pyright's exit code."""
    common, files = fingerprint(ROOT), digests(ROOT)
    passed = read_passed(ROOT / PASSED, common) if (ROOT / PASSED).exists() else published(ROOT, files)
    names = changed(files, passed=passed)
    if names is None:
        return check([], common, files)
    if not names:
        sys.stdout.write("types: nothing changed since the last check that passed, here or at origin\n")
        return 0
    affected = sorted(names | importers(names))
    sys.stdout.write(f"types: {len(affected)} of {len(files)} modules, those changed and what imports them\n")
    return check(affected, common, files)


def check(paths: list[str], common: str, files: Mapping[str, str]) -> int:
    """Run pyright on ``paths``, on everything where there are none, and remember all files if it passes."""
    program = Path(sys.executable).parent / "pyright"
    sys.stdout.flush()
    exit_code = subprocess.run([str(program), *paths], cwd=ROOT, check=False).returncode
    if exit_code == 0:
        kept = ROOT / PASSED
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"common": common, "files": files}))
    return exit_code


def fingerprint(root: Path) -> str:
    """A digest of what the types of every module depend on."""
    digest = hashlib.sha256()
    for pattern in EVERYWHERE:
        for path in sorted(root.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def digests(root: Path) -> dict[str, str]:
    """The digest of each module that pyright checks, by its path."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pyright"]
    excluded = [folder for folder in settings["exclude"] if "*" not in folder]
    paths = (path for folder in settings["include"] for path in (root / folder).rglob("*.py"))
    named = {str(path.relative_to(root)): path for path in paths}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sorted(named.items())
        if not any(name.startswith(f"{folder}/") for folder in excluded)
    }


def read_passed(path: Path, common: str) -> dict[str, str]:
    """The digests at the last check that passed; empty where it knew other packages or settings."""
    try:
        known = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return known["files"] if known["common"] == common else {}


def published(root: Path, files: Mapping[str, str]) -> dict[str, str]:
    """The digests of the modules that are as in the newest commit that ``origin`` has, and "" for those removed since.

    Empty where settings or packages differ from that commit, or where there is none.
    """
    base = _git(root, "merge-base", "HEAD", "origin/HEAD")
    if not base:
        return {}
    listings = (
        _git(root, "diff", "--name-only", "-z", base[0]),
        _git(root, "ls-files", "--others", "--exclude-standard", "-z"),
    )
    differing = {name for listing in listings for name in listing}
    if differing & {str(path.relative_to(root)) for pattern in EVERYWHERE for path in root.glob(pattern)}:
        return {}
    removed = {name for name in differing if name.endswith(".py") and not (root / name).exists()}
    return {name: digest for name, digest in files.items() if name not in differing} | dict.fromkeys(
        removed, ""
    )


def _git(root: Path, *arguments: str) -> list[str]:
    """The lines, or names ended by zeros, that git prints; none if it fails or is missing."""
    program = shutil.which("git")
    if program is None:
        return []
    done = subprocess.run([program, *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.replace("\0", "\n").splitlines() if done.returncode == 0 else []


def changed(files: Mapping[str, str], *, passed: Mapping[str, str]) -> set[str] | None:
    """The files that differ from those that passed; None where everything has to be checked."""
    if not passed or passed.keys() - files.keys():
        return None
    return {name for name, digest in files.items() if passed.get(name) != digest}


def importers(names: set[str]) -> set[str]:
    """The files of the modules that import these, directly or through others."""
    sys.path[:0] = [str(ROOT), str(ROOT / "services")]
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    modules = {module_of(name) for name in names} & graph.modules
    found = {each for module in modules for each in graph.find_downstream_modules(module)}
    return {path for module in found if (path := file_of(module)) is not None}


def module_of(name: str) -> str:
    """The name by which a file is imported."""
    return name.removeprefix("services/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_of(module: str) -> str | None:
    """The file of a module below the root; None for a package without one."""
    top, _, rest = module.partition(".")
    path = "/".join([PACKAGES[top], *rest.split(".")]).rstrip("/")
    return next(
        (name for name in (f"{path}.py", f"{path}/__init__.py") if (ROOT / name).is_file()),
        None,
    )


if __name__ == "__main__":
    raise SystemExit(main())
