"""``tidegate.train`` and ``tidegate.train_async``: a run from its start to its end.

The platform is a process of its own, ``tidegate up``, which starts the services. It ends with this program, however
that ends.
"""

import asyncio
import os
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import yaml

from tidegate.api.runs import Run
from tidegate.cli.callbacks.events import RunEvent, RunUpdate
from tidegate.cli.callbacks.own_callback import check_callback, told
from tidegate.cli.callbacks.run_events import RunEvents
from tidegate.cli.up.summary import SUMMARY_JSON
from tidegate.core.errors import ConfigError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import default_folder
from tidegate.launch.up_process import up_process

RunFileLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
# Gets each update once; ends the run by returning True.
OnUpdate: TypeAlias = Callable[[RunUpdate], bool | None]

POLL_S = 0.5
# A platform that is told to end drains, audits, and writes its report.
DRAIN_S = 300.0
# Of what the platform printed; the last of them are the reason where it fails.
LINES_KEPT = 200


def train(
    run_file: RunFileLike,
    *,
    overrides: Mapping[str, Any] | None = None,
    until: str | None = None,
    time_limit: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    on_update: OnUpdate | None = None,
    callbacks: Sequence[object] = (),
) -> Run:
    """Train a run file to its target, and return the run; ``run.summary["succeeded"]`` says whether it went well.

    ``run_file``: its path, or its content. ``overrides``: keys by path, such as ``{"staleness.max_lag": 0}``.
    ``until``: a target such as ``mean_return>=475`` instead of the run file's. ``time_limit``: such as ``90s`` or
    ``5m``. ``folder``: where it writes; the folder of an earlier start of this run is resumed. ``on_update`` is called
    in this thread after each update of the learner; it ends the run by returning True, and what it raises ends the run
    and is raised here. ``callbacks``: objects with the methods of a callback of a run file (docs/own_code.md), called
    in this thread as well.

    Raises:
        ConfigError: the run was refused, or ended before it could write its summary; the message is what it said.
            Or one of ``callbacks`` is none.
    """
    listeners = _listeners(on_update, callbacks)
    return _train(run_file, overrides or {}, until, time_limit, folder, listeners, stop=threading.Event())


async def train_async(
    run_file: RunFileLike,
    *,
    overrides: Mapping[str, Any] | None = None,
    until: str | None = None,
    time_limit: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    on_update: OnUpdate | None = None,
    callbacks: Sequence[object] = (),
) -> Run:
    """``train`` for programs with an event loop: several runs may go on at once.

    ``on_update`` and ``callbacks`` are called in a thread of the run's. A cancelled call ends its run first.

    Raises:
        ConfigError: as ``train``.
    """
    listeners = _listeners(on_update, callbacks)
    stop = threading.Event()
    work = asyncio.create_task(
        asyncio.to_thread(_train, run_file, overrides or {}, until, time_limit, folder, listeners, stop=stop)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({work})
        raise


def _train(
    run_file: RunFileLike,
    overrides: Mapping[str, Any],
    until: str | None,
    time_limit: str | None,
    folder: str | os.PathLike[str] | None,
    listeners: Sequence[object],
    *,
    stop: threading.Event,
) -> Run:
    sets = [f"{key}={_text(value)}" for key, value in overrides.items()]
    with _as_path(run_file) as path:
        plan = read_run_file(path, sets)
        where = default_folder(plan) if folder is None else Path(folder).expanduser()
        events = RunEvents(where, since_s=time.time())  # a run that is resumed has updates of before
        summary_before = _written_at(where)
        arguments = [str(path), "--dir", str(where), "--headless"]
        arguments += [argument for each in sets for argument in ("--set", each)]
        arguments += [] if until is None else ["--until", until]
        arguments += [] if time_limit is None else ["--for", time_limit]
        with _platform(arguments) as (process, lines):
            _follow(process, events, listeners, stop=stop)
        for event in events.new():  # of the drain: it is over whatever a listener says
            for listener in listeners:
                told(listener, event)
        for listener in listeners:
            told(listener, events.end(now_s=time.time()))
    if _written_at(where) == summary_before:
        said = [line for line in lines if line.strip()]
        raise ConfigError("The run ended without a summary", why=said[-1] if said else "it was killed")
    return Run(where)


class _OnUpdate:
    """A function as a callback."""

    def __init__(self, function: OnUpdate) -> None:
        self.on_update = function


def _listeners(on_update: OnUpdate | None, callbacks: Sequence[object]) -> list[object]:
    for callback in callbacks:
        check_callback(callback, written=type(callback).__name__)
    return [*([] if on_update is None else [_OnUpdate(on_update)]), *callbacks]


def _follow(
    process: subprocess.Popen[str], events: RunEvents, listeners: Sequence[object], *, stop: threading.Event
) -> None:
    """Wait for the platform's end, or until a listener or the caller ends it, and tell each event on the way."""
    has_ended = False
    while not has_ended and not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
            has_ended = True
        # All of them, also after the one at which a listener ends the run: none is told again.
        answers = [_ends(event, listeners) for event in events.new()]
        if any(answers):
            return


def _ends(event: RunEvent, listeners: Sequence[object]) -> bool:
    """Tell all listeners, then say whether one of them ends the run."""
    answers = [told(listener, event) for listener in listeners]
    return any(answer is True for answer in answers)


@contextmanager
def _platform(arguments: list[str]) -> Generator[tuple[subprocess.Popen[str], deque[str]]]:
    """``tidegate up``, and the last lines that it printed, which are all there after the block."""
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with up_process(arguments, output=subprocess.PIPE, drain_s=DRAIN_S) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        yield process, lines
    reader.join(timeout=POLL_S)


def _read(stream: IO[str], lines: deque[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))


@contextmanager
def _as_path(run_file: RunFileLike) -> Generator[Path]:
    """The path of a run file; its content is written to a temporary one, whose files are in the working directory."""
    if not isinstance(run_file, Mapping):
        yield Path(run_file).expanduser()
        return
    document = {**_plain(run_file), "files_dir": os.path.abspath(run_file.get("files_dir") or os.curdir)}
    with tempfile.TemporaryDirectory(prefix="tidegate-run-") as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        yield path


def _text(value: object) -> str:
    """A value as YAML has it on one line, which is how ``--set`` reads it."""
    return yaml.safe_dump(_plain(value), default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    """A value of a run file with the types of YAML; of numbers and arrays of numpy and torch their content.

    Raises:
        ConfigError: there is no such value in a run file.
    """
    if isinstance(value, Mapping):
        fields = cast("Mapping[object, Any]", value)
        return {str(name): _plain(each) for name, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, str | int | float | date):
        return value
    raise ConfigError(
        f"{str(value)[:80]!r} is no value of a run file",
        why=f"it is {type(value).__name__}",
        fix="give a text, a number, a path, a list or a mapping",
    )


def _written_at(folder: Path) -> int | None:
    """When the summary was written, in nanoseconds; None without one."""
    path = folder / SUMMARY_JSON
    return path.stat().st_mtime_ns if path.is_file() else None
