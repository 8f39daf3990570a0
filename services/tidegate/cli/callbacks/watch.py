"""The program beside a run that calls a callback: ``python -m tidegate.cli.callbacks.watch FOLDER SINCE REFERENCE``.

Nothing of the run waits for it. A call that takes longer than ``SLOW_S`` is named by its stack in the log; after the
run the process has a deadline (``launch.companions``).
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.callbacks.events import RunEvent
from tidegate.cli.callbacks.own_callback import GuardedCallback, load_callback
from tidegate.cli.callbacks.run_events import RunEvents
from tidegate.core.errors import ConfigError
from tidegate.launch.run_folder import is_run_folder
from tidegate.launch.supervised import await_folder, is_supervised
from tidegate.runtime.own_code.child_setup import end, limit_memory
from tidegate.runtime.own_code.process import PLATFORM_VARIABLES
from tidegate.runtime.own_code.references import OwnReference

LOOK_PERIOD_S = 0.5
SLOW_S = 30.0
MEMORY_BYTES = 4 << 30
# What the code prints goes into the log, which is cut there.
LOG_BYTES_MAX = 8 << 20
TRIM_PERIOD_S = 5.0


def watch(
    folder: Path,
    callback: Any,
    reference: OwnReference,
    *,
    since_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Tell the callback what happens until the run is over; returns whether no call failed."""
    guarded = GuardedCallback(callback, reference, say=say)
    await_folder(folder)
    if not is_run_folder(folder):
        return True  # the run was refused before it began
    events = RunEvents(folder, since_s=since_s)
    tell(guarded, events, is_over=lambda: not is_supervised(folder), pause=pause)
    if events.num_skipped:
        say(f"{reference.written} was slower than the run: {events.num_skipped:,} events were left out")
    if guarded.num_failures:
        say(f"{reference.written}: {guarded.num_failures:,} calls failed")
    return not guarded.num_failures


def tell(
    guarded: GuardedCallback,
    events: RunEvents,
    *,
    is_over: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
    told: Callable[[Sequence[RunEvent]], None] = lambda _: None,
) -> None:
    """Tell a callback what happens until the run is over, and its end.

    ``told``: gets what it was told, after each look.
    """
    over = False
    while not over:
        # What is written after the last look belongs to the run as well.
        over = is_over()
        new = [*events.new(), *([events.end(now_s=time.time())] if over else [])]
        for event in new:
            _told_by(guarded, event)
        if new:
            told(new)
        if not over:
            pause(LOOK_PERIOD_S)


def _told_by(guarded: GuardedCallback, event: RunEvent) -> None:
    # Not by a thread: code that holds the interpreter's lock is named too.
    faulthandler.dump_traceback_later(SLOW_S, repeat=False, file=sys.__stderr__ or sys.stderr)
    try:
        guarded.tell(event)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _trim_log() -> None:
    while True:
        time.sleep(TRIM_PERIOD_S)
        if os.fstat(1).st_size > LOG_BYTES_MAX:
            os.ftruncate(1, 0)  # it is open to append, so what follows is at the new end


def prepare() -> None:
    """Bound what the code may take, and hide the platform's variables from it."""
    for name in [name for name in os.environ if name.startswith(PLATFORM_VARIABLES)]:
        del os.environ[name]
    limit_memory(MEMORY_BYTES)


def print_line(line: str) -> None:
    """One line of the log, at once."""
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()


def main() -> int:
    """Watch the folder that the command line names."""
    folder, since_s = Path(sys.argv[1]), float(sys.argv[2])
    reference = msgspec.json.decode(sys.argv[3], type=OwnReference)
    prepare()
    threading.Thread(target=_trim_log, daemon=True).start()
    try:
        callback = load_callback(reference)
    except ConfigError as error:
        print_line(str(error))
        return 1
    return 0 if watch(folder, callback, reference, since_s=since_s, say=print_line) else 1


if __name__ == "__main__":
    end(main())
