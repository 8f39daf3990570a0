"""A run by the address of its backups: the newest whole one as a run folder of this machine, to read it."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tidegate.core.errors import ConfigError
from tidegate.runtime.object_storage.urls import scheme_of
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import last_words, python_program

DEADLINE_S = 3600.0


class FetchedRun:
    """A temporary run folder, which is deleted with this object, at the end of the process at the latest."""

    def __init__(self, url: str) -> None:
        """``url``: as of `tidegate restore`.

        Raises:
            ConfigError: there is no backup, it cannot be read, or it takes longer than ``DEADLINE_S``.
        """
        scheme_of(url, setting="URL")
        self._kept = TemporaryDirectory(prefix="tidegate-run-")
        self.folder = Path(self._kept.name) / "run"
        # In a process of its own: the library keeps threads, which may end a program of the user's at its end.
        try:
            done = subprocess.run(
                python_program("tidegate.cli.main", "restore", url, str(self.folder)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
                preexec_fn=dies_with_this_process(),
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"{url} was not copied within {DEADLINE_S:g} s",
                fix="copy it by `tidegate restore`, and name the folder",
            ) from error
        if done.returncode:
            raise ConfigError(f"{url} cannot be opened as a run", why=last_words(done))
