"""``tidegate ui``."""

import asyncio
import signal
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.run_list import RunFolders
from tidegate.cli.ui.guard import is_loopback
from tidegate.core.errors import ConfigError
from tidegate.launch.backup.fetching import FetchedRun
from tidegate.launch.run_folder import RUNS
from tidegate.runtime.loading import load
from tidegate.runtime.object_storage.urls import is_url
from tidegate.runtime.ports import LOOPBACK

PORT = 8471
# What the extra `ui` installs.
NEEDED = ("aiohttp", "plotly")
TOKEN_VARIABLE = "TIDEGATE_UI_TOKEN"


def ui(
    place: Annotated[
        str,
        typer.Argument(
            help="Run folder, a folder with runs, or the address of a run's backups.",
            metavar="DIR",
            show_default=True,
        ),
    ] = str(RUNS),
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than loopback needs a token.")
    ] = LOOPBACK,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = PORT,
    token: Annotated[
        str, typer.Option(envvar=TOKEN_VARIABLE, help="Token that a browser must bring, as ?token=... once.")
    ] = "",
    cluster: Annotated[
        Path | None,
        typer.Option(help="Folder with run.yaml and cluster.yaml: DIR follows this run. Set by the chart."),
    ] = None,
) -> None:
    """Serve a page over runs: curves, lag against the budget, the bottleneck, every trajectory. It changes nothing.

    Reads the folders of live and ended runs, until it is interrupted. Of an address it shows the newest backup that
    there is when it starts.
    """
    check_can_serve(host=host, token=token)
    fetched = FetchedRun(place) if is_url(place) else None
    folder = Path(place) if fetched is None else fetched.folder
    serve = partial(_serve, folder, host=host, port=port, token=token)
    asyncio.run(
        serve() if cluster is None else load("tidegate.cli.ui.cluster:with_copy")(cluster, folder, serve)
    )


def check_can_serve(*, host: str, token: str) -> None:
    """Refuse what would be open to others, or cannot run here.

    Raises:
        ConfigError: no token on an address that others reach, or a library is missing.
    """
    if not token and not is_loopback(host):
        raise ConfigError(
            f"The page would be open to everybody who reaches {host}",
            why="it shows prompts, completions and settings",
            fix=f"set {TOKEN_VARIABLE} to a secret, or leave --host out",
        )
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The page needs {' and '.join(missing)}", fix="install the extra: pip install 'tidegate[ui]'"
        )


async def _serve(place: Path, *, host: str, port: int, token: str) -> None:
    runs = RunFolders(place)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    server = load("tidegate.cli.ui.server:UiServer")(runs, token=token)
    await server.start(host=host, port=port)
    try:
        sys.stdout.write(f"http://{server.address}/ (Ctrl-C ends it)\n")
        sys.stdout.flush()
        await stopped.wait()
    finally:
        await server.close()
