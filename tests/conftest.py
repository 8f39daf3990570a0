"""Settings of every test: threads that suit small machines, examples that never fail by the clock, an end to hangs."""

import faulthandler
import fcntl
import gc
import itertools
import os
import sys
from collections.abc import Generator

import hypothesis
import pytest
import structlog

from tidegate.runtime.grpc_forks import leave_grpc_out_of_forks

# Before anything imports torch: the tests share few cores with the services that they start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Workers of pytest-xdist inherit the width that readline sets in their parent, and no test has a terminal.
os.environ.pop("COLUMNS", None)

# No deadline, as nothing here asserts on time. The examples are the same each time, so that a failure repeats, and a
# change fails by what it changed alone; more of the same would find little that `make test-all` does not.
hypothesis.settings.register_profile(
    "tidegate",
    max_examples=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Few examples, for `make check`: --hypothesis-profile=quick.
hypothesis.settings.register_profile(
    "quick", parent=hypothesis.settings.get_profile("tidegate"), max_examples=20
)
# Many other ones each time, for `make test-all`: --hypothesis-profile=explore.
hypothesis.settings.register_profile(
    "explore", parent=hypothesis.settings.get_profile("tidegate"), derandomize=False, max_examples=400
)
hypothesis.settings.load_profile("tidegate")

# As every command and service does; tests use gRPC in the process that starts programs.
leave_grpc_out_of_forks()

# Plain tracebacks: rich ones, with every local of every frame, hold an event loop for 0.2 CPU-seconds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Collection makes a million objects that live to the end, and a full collection of garbage walks all of them: without
# these lines that takes a tenth of the CPU time of `make check`.
gc.disable()

# A worker's tests leave objects that live to its end as well, such as imported modules. A full collection in the middle
# of a test walks them all, and the watchdog of event loops sees 0.3 to 1.4 s of it where machines are slow.
TESTS_BETWEEN_FREEZES = 100
_numbers = itertools.count(1)

# Beyond a test's own timeout.
HANG_GRACE_S = 60.0


# Each worker of pytest-xdist holds torch.
WORKERS_MAX = 8


def pytest_xdist_auto_num_workers() -> int:
    """Workers for ``-n auto``: two more than there are cores, as the tests of processes wait a third of the time."""
    return min(WORKERS_MAX, (os.cpu_count() or 1) + 2)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Let one worker at a time import a module of tests.

    The first rewrites its assertions and keeps the bytecode, which takes half of a fresh clone's collection; the
    others, a few modules behind, read that.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as source:
        fcntl.flock(source, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of every later collection of garbage."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Now and then, between two tests, leave what lives out of every later collection of garbage."""
    if next(_numbers) % TESTS_BETWEEN_FREEZES == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that outlives its timeout.

    The timeout raises an exception wherever the main thread is. Inside a callback of an event loop the loop logs it and
    goes on, and the test waits for ever. With pytest-xdist only the worker ends, and its test has failed.
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(timeout_s + HANG_GRACE_S, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a failure once more where Python could not parse the source that the report shows.

    A collection of garbage during `ast.parse` may log a traceback, which parses as well; Python 3.11 then raises a
    SystemError (CPython issue 106905, pytest issue 10763), and pytest would end the whole worker with it.
    """
    try:
        return (yield)
    except SystemError:
        gc.collect()
        return pytest.TestReport.from_item_and_call(item, call)
