"""A model is copied whole or not at all, once, from a folder or a web server."""

import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.tiny_llama import make_folder
from tidegate.cli.app import run
from tidegate.core.errors import ConfigError, CorruptionError, DeadlineError, UnavailableError
from tidegate.launch import model_sources
from tidegate.launch.model_volume import fill
from tidegate.models.model_folder import INDEX_FILE, folder_digest
from tidegate.runtime.files import lock_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("source") / "llama", tied=True)
    (folder / "modeling.py").write_text("raise SystemExit", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Site:
    """A web server's folder: ``asked`` are its requests; ``cut`` files end in the middle, ``token`` is needed."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.cut: set[str] = set()
        self.token = ""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                site.asked.append(name)
                if site.token and self.headers.get("Authorization") != f"Bearer {site.token}":
                    return self.send_error(401)
                if not (folder / name).is_file():
                    return self.send_error(404)
                data = (folder / name).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if name in site.cut else data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/org/model/resolve/main"
        self.thread = threading.Thread(target=partial(self.server.serve_forever, poll_interval=0.05))


@pytest.fixture
def site(model: Path) -> Iterator[Site]:
    made = Site(model)
    made.thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join(timeout=10)


def test_folder_is_copied_once_without_code_and_pickles(model: Path, tmp_path: Path) -> None:
    into = tmp_path / "cache" / "base"
    assert fill(str(model), into, deadline_s=1.0)
    assert not fill(str(model), into, deadline_s=1.0)
    assert folder_digest(into) == folder_digest(model)
    assert {"config.json", "model.safetensors"} <= names(into)
    assert not names(into) & {"modeling.py", "pytorch_model.bin"}
    assert names(into.parent) == {"base", ".base.lock"}


def test_links_of_a_hubs_cache_are_followed(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)
    fill(str(snapshot), tmp_path / "base", deadline_s=1.0)
    assert not (tmp_path / "base" / "model.safetensors").is_symlink()
    assert folder_digest(tmp_path / "base") == folder_digest(model)


def test_model_of_a_web_server_is_loaded_and_only_with_its_token(
    site: Site, model: Path, tmp_path: Path
) -> None:
    site.token = "secret"
    with pytest.raises(ConfigError, match="answers 401"):
        fill(site.url, tmp_path / "base", deadline_s=1.0)
    assert names(tmp_path) == {".base.lock"}
    assert fill(site.url, tmp_path / "base", token="secret", deadline_s=1.0)
    assert folder_digest(tmp_path / "base") == folder_digest(model)


def test_interrupted_download_leaves_no_model_and_goes_on_after_the_last_whole_file(
    site: Site, model: Path, tmp_path: Path
) -> None:
    site.cut = {"model.safetensors"}
    with pytest.raises(UnavailableError, match="was not loaded"):
        fill(site.url, tmp_path / "base", deadline_s=1.0)
    assert not (tmp_path / "base").exists()
    site.cut, site.asked = set(), []
    assert fill(site.url, tmp_path / "base", deadline_s=1.0)
    assert "config.json" not in site.asked
    assert folder_digest(tmp_path / "base") == folder_digest(model)


def test_server_that_is_not_there_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="was not loaded"):
        fill("http://127.0.0.1:9/model", tmp_path / "base", deadline_s=1.0)


@pytest.mark.parametrize("name", ["../../etc/passwd.safetensors", "model.bin", "a/b.safetensors"])
def test_index_that_names_files_elsewhere_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((model / "config.json").read_bytes())
    (source / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
    site = Site(source)
    site.thread.start()
    try:
        with pytest.raises(ConfigError, match="names 1 files of weights"):
            fill(site.url, tmp_path / "base", deadline_s=1.0)
    finally:
        site.server.shutdown()
        site.server.server_close()
        site.thread.join(timeout=10)


def test_model_that_is_not_whole_is_removed_and_told(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((model / "config.json").read_bytes())
    (source / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CorruptionError, match="is not whole"):
        fill(str(source), tmp_path / "base", deadline_s=1.0)
    assert names(tmp_path) == {"source", ".base.lock"}


def test_disk_that_is_too_small_is_told_before_anything_is_copied(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_sources, "SPARE_BYTES", 1 << 62)
    with pytest.raises(ConfigError, match="GB free"):
        fill(str(model), tmp_path / "base", deadline_s=1.0)


def test_second_process_waits_for_the_first_and_takes_its_folder(model: Path, tmp_path: Path) -> None:
    into = tmp_path / "base"
    lock = lock_file(tmp_path / ".base.lock")
    assert lock is not None

    def first_ends(_seconds: float) -> None:
        into.mkdir()
        os.close(lock)

    assert not fill(str(model), into, deadline_s=60.0, wait=first_ends)


def test_first_process_that_never_ends_is_not_waited_for_beyond_the_deadline(
    model: Path, tmp_path: Path
) -> None:
    lock = lock_file(tmp_path / ".base.lock")
    assert lock is not None
    with pytest.raises(DeadlineError, match="for more than 0 s"):
        fill(str(model), tmp_path / "base", deadline_s=0.1, wait=lambda _: None)
    os.close(lock)


def test_command_fills_a_folder_and_says_whether_it_did(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = str(tmp_path / "base")
    assert run(["model", str(model), "--into", into]) == 0
    assert run(["model", str(model), "--into", into]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{into} filled", f"{into} is there"]
    assert run(["model", "smollm2", "--into", into]) == 2
    assert run(["model", str(tmp_path / "nowhere"), "--into", str(tmp_path / "other")]) == 2
