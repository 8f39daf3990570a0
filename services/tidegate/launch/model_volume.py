"""Fills a folder with a pretrained model once, for all pods of a node or of a volume.

Consumes a source and the path of a folder; produces the folder, whole or not at all; waits for another process that
fills the same one; unblocked by its end, with which its lock goes, or by the deadline.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.core.errors import ConfigError, CorruptionError, DeadlineError, TidegateError
from tidegate.launch.model_sources import copy_folder, download, is_url
from tidegate.models.model_folder import check_files
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.files import lock_file, sync_folder

LOOK_EVERY_S = 1.0


def fill(
    source: str,
    folder: Path,
    *,
    token: str = "",
    deadline_s: float,
    clock: Clock | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Copy the model of ``source``, a folder or an URL of one, into ``folder``; False where it was there already.

    What arrived before an interruption is kept and not loaded again. ``token``: for the server of an URL.
    ``deadline_s``: how long to wait for another process that fills it.

    Raises:
        ConfigError: the source has no model, or there is not enough space.
        UnavailableError: the server of the source did not answer, or another process filled it beyond the deadline.
        CorruptionError: what arrived is no whole model; it is removed.
        OSError: a disk refused.
    """
    if folder.is_dir():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder, deadline_s=deadline_s, clock=clock or SystemClock(), wait=wait)
    if lock is None:
        return False
    try:
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        unfinished.mkdir(exist_ok=True)
        _fill(source, unfinished, token=token)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    finally:
        os.close(lock)
    return True


def _lock(folder: Path, *, deadline_s: float, clock: Clock, wait: Callable[[float], None]) -> int | None:
    """The lock of the one that fills; None where another has filled the folder meanwhile."""
    path = folder.with_name(f".{folder.name}.lock")
    ends_s = clock.monotonic_s() + deadline_s
    while (lock := lock_file(path)) is None:
        if clock.monotonic_s() >= ends_s:
            raise DeadlineError(
                f"Another process has filled {folder} for more than {deadline_s:,.0f} s",
                fix="look at the pod of this node that does, or give a longer deadline",
            )
        wait(LOOK_EVERY_S)
    if folder.is_dir():
        os.close(lock)
        return None
    return lock


def _fill(source: str, unfinished: Path, *, token: str) -> None:
    """Copy and check; what no further attempt could use is removed."""
    try:
        if is_url(source):
            download(source, unfinished, token=token)
        else:
            copy_folder(Path(source), unfinished)
    except ConfigError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    try:
        check_files(unfinished)
    except TidegateError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CorruptionError(
            f"The model from {source} is not whole: {error.what}", why=error.why, fix="correct the source"
        ) from error
