"""A hub for models, as huggingface_hub speaks to one: repositories, commits, and large files by LFS (no Xet)."""

import base64
import fnmatch
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

OWNER, WRITER, READER = "acme", "hf_writer", "hf_reader"
LARGE = "*.safetensors"


@dataclass
class Repository:
    """``commits``: the message of each, and the names that it wrote and deleted."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: list[tuple[str, list[str], list[str]]] = field(
        default_factory=list[tuple[str, list[str], list[str]]]
    )


class HubServer(ThreadingHTTPServer):
    """Answers until it is shut down. ``WRITER`` may write, ``READER`` is refused by 403, others by 401."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}


@contextmanager
def serve_hub() -> Generator[HubServer]:
    """A hub on a free port."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> HubServer:
        return cast("HubServer", self.server)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self._chunks()
        status = self._refused()
        if status:
            self._answer(status, {"error": "Invalid token" if status == 401 else "You may not write here"})
        elif self.path == "/api/repos/create":
            self._create(json.loads(data))
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if fnmatch.fnmatch(file["path"], LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(data)["files"]
            ]
            self._answer(200, {"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.hub.url}/large/{each['oid']}"}}}
                for each in json.loads(data)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        else:
            self._commit([json.loads(line) for line in data.splitlines()])

    def do_PUT(self) -> None:
        self.hub.large[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {})

    def do_GET(self) -> None:
        if self._name() not in self.hub.repositories:
            self._answer(404, {"error": "Repository not found"})
            return
        files = self._repository().files
        self._answer(
            200,
            [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()],
        )

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization'] or OWNER}/{asked['name']}"
        known = name in self.hub.repositories
        if not known:
            self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        self._answer(409 if known else 200, {"url": f"{self.hub.url}/{name}"})

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        repository = self._repository()
        written: list[str] = []
        deleted: list[str] = []
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                deleted.append(value["path"])
                del repository.files[value["path"]]
                continue
            written.append(value["path"])
            repository.files[value["path"]] = (
                self.hub.large[value["oid"]]
                if line["key"] == "lfsFile"
                else base64.b64decode(value["content"])
            )
        repository.commits.append((lines[0]["value"]["summary"], written, deleted))
        number = len(repository.commits)
        url = f"{self.hub.url}/{self._name()}/commit/{number}"
        self._answer(200, {"commitUrl": url, "commitOid": str(number)})

    def _repository(self) -> Repository:
        return self.hub.repositories[self._name()]

    def _name(self) -> str:
        return "/".join(self.path.split("/")[3:5])

    def _refused(self) -> int:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return {WRITER: 0, READER: 403}.get(token, 401)

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        del format, args
