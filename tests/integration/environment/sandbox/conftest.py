"""A started sandbox; on a machine without isolation its tests assert the refusal instead."""

from collections.abc import Iterator

import psutil
import pytest

from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import IsolationUnavailableError


@pytest.fixture(scope="session")
def shared_sandbox() -> Iterator[LinuxSandbox | IsolationUnavailableError]:
    """One sandbox for all tests, or the reason that there is none."""
    sandbox = LinuxSandbox(max_runs=4)
    try:
        sandbox.start()
    except IsolationUnavailableError as error:
        yield error
    else:
        yield sandbox
        sandbox.close()


@pytest.fixture
def sandbox(shared_sandbox: LinuxSandbox | IsolationUnavailableError) -> Iterator[LinuxSandbox]:
    """The sandbox. Afterwards it still works, in the same zygote, and nothing that a test started is alive."""
    if isinstance(shared_sandbox, IsolationUnavailableError):
        assert shared_sandbox.why, "a refusal names what is missing"
        assert shared_sandbox.fix, "a refusal contains the fix"
        with pytest.raises(IsolationUnavailableError):
            LinuxSandbox().run_python("print(1)")
        pytest.skip(f"refused, as it must be: {shared_sandbox.why}")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield shared_sandbox
    assert shared_sandbox.run_python("print('alive')").stdout == "alive\n"
    after = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    _, alive = psutil.wait_procs(after, timeout=10)  # a monitor ends after its answer was read
    assert not alive
