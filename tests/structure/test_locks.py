"""The lock files name packages, versions and hashes, and nothing of the machine that wrote them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
PINNED = re.compile(r"[a-z0-9-]+==[A-Za-z0-9.+!]+( ; [a-z_A-Z0-9.'<>=! ()]+)? \\")
HASHED = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
# What `make` and CI read: a host or a folder of one machine in there would bind every user to it.
BUILD_FILES = [
    path
    for pattern in ("Makefile", "pyproject.toml", "buf*.yaml", ".gitignore", ".ci/*", "locks/*", "tools/*.*")
    for path in sorted(ROOT.glob(pattern))
]
SHEBANG = re.compile(r"\A#!.*")
OF_A_MACHINE = re.compile(r"\w+://|(?<![\w.$)}/*])/(?:etc|home|mnt|opt|root|srv|tmp|usr|var|work|Users)\b")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_holds_only_names_versions_and_hashes(lock: Path) -> None:
    lines = lock.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not PINNED.fullmatch(line) and not HASHED.fullmatch(line)] == []
    unhashed = [
        line
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if "==" in line and "--hash" not in after
    ]
    assert unhashed == []


def test_dev_lock_pins_all_that_the_runtime_lock_pins() -> None:
    runtime, dev = (pins(ROOT / "locks" / name) for name in ("runtime.txt", "dev.txt"))
    assert runtime
    assert sorted(runtime - dev) == []


def test_lock_for_cuda_12_differs_from_the_runtime_lock_in_torch_and_cuda_alone() -> None:
    runtime, cuda_12 = (pins(ROOT / "locks" / name) for name in ("runtime.txt", "runtime-cuda12.txt"))
    of_torch = re.compile(r"torch==|triton==|cuda-|nvidia-(?!ml-py)|networkx==|setuptools==")
    assert sorted(pin for pin in cuda_12 - runtime if not of_torch.match(pin)) == []
    assert any(pin.startswith("nvidia-nccl-cu12==") for pin in cuda_12)
    assert not any("-cu13" in pin for pin in cuda_12)


@pytest.mark.parametrize("path", BUILD_FILES, ids=lambda path: path.name)
def test_build_file_names_no_host_and_no_folder_of_a_machine(path: Path) -> None:
    text = SHEBANG.sub("", path.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if OF_A_MACHINE.search(line)] == []


def pins(lock: Path) -> set[str]:
    """Read the pinned packages of a lock. Not their markers: what more tools ask for, more platforms may need."""
    return {
        line.split(";")[0].strip(" \\")
        for line in lock.read_text(encoding="utf-8").splitlines()
        if "==" in line and "--hash" not in line
    }
