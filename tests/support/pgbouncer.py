"""A real PgBouncer in front of a PostgreSQL server of tests (Debian: pgbouncer)."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker import free_port
from tests.support.postgres import START_S, PostgresServer, await_answer

# It refuses to run as root.
_UID = 65534


def find_pgbouncer() -> str | None:
    """The program; Debian's is outside of the PATH of most users."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooled(server: PostgresServer, *, mode: str, pool_size: int, ignored: str = "") -> Generator[str]:
    """The address of a pooler of so many sessions. ``ignored``: startup parameters that it forgets, not refuses."""
    program = find_pgbouncer()
    assert program is not None
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pgbouncer-"))
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""
[databases]
postgres = host=127.0.0.1 port={server.port} dbname=postgres user=tidegate
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {pool_size}
ignore_startup_parameters = {ignored}
"""
    )
    folder.chmod(0o755)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [program, str(settings)],
        user=_UID if os.geteuid() == 0 else None,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    uri = f"postgresql://tidegate@127.0.0.1:{port}/postgres"
    try:
        await_answer(uri, process, log=folder / "log")
        yield uri
    finally:
        process.kill()
        process.wait(timeout=START_S)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
