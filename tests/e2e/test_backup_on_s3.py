"""Backups on a real S3 server, by a link so slow that processes die in the middle of an upload.

The server is Versity's gateway, which `go install github.com/versity/versitygw/cmd/versitygw@latest` builds;
``TIDEGATE_E2E_S3_SERVER`` names its program where it is not on the PATH.
"""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, START_TIMEOUT_S, Run
from tests.e2e.killing import end_after_more_steps, lose_machine
from tests.support.broker import free_port, is_free
from tests.support.proxy import Proxy
from tidegate.core.errors import NotFoundError
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX, open_place
from tidegate.runtime.ports import LOOPBACK

SERVER = os.environ.get("TIDEGATE_E2E_S3_SERVER") or shutil.which("versitygw")
ACCESS = {"AWS_ACCESS_KEY_ID": "tidegate", "AWS_SECRET_ACCESS_KEY": "of-this-test", "AWS_REGION": "us-east-1"}
BUCKET = "runs"
PLACE = f"s3://{BUCKET}/backups"
MAX_LAG = 4
STEPS = 20
KILLS = 12
COMMAND = [sys.executable, "-m", "tidegate.cli.main"]
UPLOAD = """
import asyncio, sys
from pathlib import Path
from tidegate.runtime.object_storage.place import open_place
asyncio.run(open_place(sys.argv[1], setting="place").put_file(sys.argv[2], Path(sys.argv[3])))
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        SERVER is None, reason="TIDEGATE_E2E_S3_SERVER names no S3 server, and none is on the PATH"
    ),
]


class Server:
    """An S3 server with one bucket, and a slow link to it."""

    def __init__(self, folder: Path, *, bytes_per_s: float) -> None:
        """Not yet started."""
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / BUCKET).mkdir(parents=True)
        self.link = Proxy(self._port, bytes_per_s=bytes_per_s)

    def start(self) -> None:
        """Return once it listens."""
        command = [str(SERVER), "--port", f"{LOOPBACK}:{self._port}", "--quiet", "posix", str(self._folder)]
        access = {
            "ROOT_ACCESS_KEY": ACCESS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": ACCESS["AWS_SECRET_ACCESS_KEY"],
        }
        self._process = subprocess.Popen(command, env={**os.environ, **access})
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while is_free(self._port):
            assert time.monotonic() < deadline_s, "the S3 server does not listen"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it without a warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=START_TIMEOUT_S)

    def variables(self, *, slow: bool = True) -> dict[str, str]:
        """What a client reads: by the slow link, or directly."""
        port = self.link.port if slow else self._port
        return {**ACCESS, "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}"}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[float], Server]]:
    """Start a server, to which each connection sends so many bytes a second."""
    started: list[Server] = []

    def serve(bytes_per_s: float) -> Server:
        server = Server(tmp_path / "buckets", bytes_per_s=bytes_per_s)
        server.start()
        server.link.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.link.close()
        server.kill()


def killed_after(server: Server, num_bytes: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether a process was killed once it had sent so many bytes; False if it ended before."""
    stop_at = server.link.bytes_sent + num_bytes
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while server.link.bytes_sent < stop_at:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline_s, "the upload stands still"
        time.sleep(0.002)
    process.kill()
    process.wait(timeout=START_TIMEOUT_S)
    return True


def backups(server: Server) -> list[dict[str, Any]]:
    """What ``tidegate restore --list`` prints, by the direct link."""
    listed = subprocess.run(
        [*COMMAND, "restore", PLACE, "--list", "--json"],
        env={**os.environ, **server.variables(slow=False)},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=START_TIMEOUT_S,
    )
    return [json.loads(line) for line in listed.stdout.splitlines()]


def restore(server: Server, folder: Path) -> None:
    subprocess.run(
        [*COMMAND, "restore", PLACE, str(folder)],
        env={**os.environ, **server.variables(slow=False)},
        check=True,
        cwd=ROOT,
        timeout=START_TIMEOUT_S,
    )


def test_backup_that_is_killed_at_any_byte_leaves_the_one_before_in_force(
    start: Callable[..., Run], serve: Callable[[float], Server], tmp_path: Path
) -> None:
    server = serve(200_000.0)
    environment = {**os.environ, **server.variables()}
    run = start(
        "runs/cartpole.yaml", "--set", f"staleness.max_lag={MAX_LAG}", "--set", "learner.checkpoint_every_steps=5",
        "--until", "", folder=tmp_path / "run",
    )  # fmt: skip
    run.until_trains(STEPS)

    def back_up() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, "backup", str(run.folder), "--to", PLACE, "--once"], env=environment, cwd=ROOT
        )

    assert back_up().wait(timeout=START_TIMEOUT_S) == 0
    whole = server.link.bytes_sent
    random_bytes = random.Random(0)
    killed = 0
    for kill in range(KILLS):
        before = backups(server)[0]["number"]
        steps = len(run.steps())
        run.until(lambda steps=steps: len(run.steps()) >= steps + 10, timeout_s=300, what="more updates")
        killed += killed_after(server, random_bytes.randrange(whole), back_up())
        listed = backups(server)
        assert not any(each["problem"] for each in listed), listed
        assert listed[0]["number"] - before in (0, 1)
        if kill % 4 == 3:
            restore(server, tmp_path / f"look-{kill}")
    assert killed >= KILLS // 2

    # The server dies in the middle, too, and comes back: the backup waits for it and is whole.
    newest = backups(server)[0]["number"]
    process = back_up()
    sent = server.link.bytes_sent
    while server.link.bytes_sent < sent + 20_000:
        time.sleep(0.002)
    server.kill()
    server.start()
    assert process.wait(timeout=START_TIMEOUT_S) == 0
    assert backups(server)[0]["number"] > newest

    lose_machine(run)
    again = tmp_path / "again"
    restore(server, again)
    resumed = start(str(again / "run.yaml"), "--until", "", folder=again)
    end_after_more_steps(resumed, steps=STEPS, max_lag=MAX_LAG)


def test_file_of_many_parts_is_there_whole_or_not_at_all(
    serve: Callable[[float], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(20e6)
    random_bytes = random.Random(0)
    content = random_bytes.randbytes(4 * OBJECT_BYTES_MAX + 12_345)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for name, value in server.variables(slow=False).items():
        monkeypatch.setenv(name, value)
    place = open_place(f"s3://{BUCKET}/exports", setting="place")

    def upload() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", UPLOAD, place.url, path.name, str(path)],
            env={**os.environ, **server.variables()},
            cwd=ROOT,
        )

    for _ in range(KILLS):
        assert killed_after(server, random_bytes.randrange(len(content)), upload())
        with pytest.raises(NotFoundError):
            asyncio.run(place.size_of(path.name))
    assert upload().wait(timeout=START_TIMEOUT_S) == 0
    assert asyncio.run(place.get(path.name, size_max=len(content))) == content
