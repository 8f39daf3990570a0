"""Starts of the sandbox on a machine that has no room for another process."""

import errno
import subprocess
from typing import NoReturn

import pytest

from tidegate.core.errors import UnavailableError
from tidegate.environment.sandbox.linux import LinuxSandbox


def test_run_that_finds_no_memory_for_the_zygote_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    sandbox = LinuxSandbox()
    with pytest.raises(UnavailableError, match="Cannot allocate memory") as caught:
        sandbox.run_python("print(1)")
    assert caught.value.retryable
    sandbox.close()
