"""The cores that processes of a run may use: who gets which, and that each thread and child has them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.launch.cores import check_machine
from tidegate.launch.processes import service_process
from tidegate.launch.run_file import read_run_file
from tidegate.launch.services import SERVICES
from tidegate.runtime.own_cores import CORES_VARIABLE

CARTPOLE = Path(__file__).parents[3] / "runs" / "cartpole.yaml"
NEEDS_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux assigns cores")


def cores_of(override: str) -> dict[str, str | None]:
    plan = read_run_file(CARTPOLE, [override])
    return {
        service: service_process(
            plan, Path("f"), service, index=0, instance=service, password="p"
        ).environment.get(CORES_VARIABLE)
        for service in SERVICES
    }


def test_service_gets_its_cores_and_every_other_one_those_of_others() -> None:
    found = cores_of("cores={learner: [0, 2], others: [1]}")
    assert found.pop("learner") == "0,2"
    assert set(found.values()) == {"1"}


def test_service_that_is_not_named_uses_every_core() -> None:
    found = cores_of("cores={learner: [3]}")
    assert found.pop("learner") == "3"
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("cores", "problem"),
    [("{lerner: [0]}", "'lerner', which is no service"), ("{learner: []}", "1"), ("{learner: [-1]}", "0")],
)
def test_cores_that_cannot_be_meant_are_refused_with_the_run_file(cores: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_run_file(CARTPOLE, [f"cores={cores}"])


@NEEDS_LINUX
def test_core_that_this_machine_does_not_have_is_refused_by_its_number() -> None:
    usable = os.sched_getaffinity(0)
    check_machine({"learner": tuple(usable)})
    with pytest.raises(ConfigError, match="others core 8191, which this machine does not have"):
        check_machine({"others": (min(usable), 8191)})


@NEEDS_LINUX
@pytest.mark.parametrize("module", ["tidegate.launch.guarded", "tidegate.cli.main"])
def test_process_takes_its_cores_before_it_does_anything_else(module: str) -> None:
    """The broker, by the program that becomes it, and a service: also their threads and children."""
    core = max(os.sched_getaffinity(0))
    shows = "import os, threading; t = threading.Thread(target=lambda: print(*os.sched_getaffinity(0))); t.start()"
    if module == "tidegate.cli.main":  # a service does no more than refuse its arguments here
        shows = textwrap.dedent(f"""
            import os
            from tidegate.launch import serve
            try:
                serve.main(["learner", "--cluster", "x"])
            except SystemExit:
                {shows}
        """).replace("import os, threading; ", "import threading; ")
        command = [sys.executable, "-c", shows]
    else:
        command = [sys.executable, "-m", module, sys.executable, "-c", shows]
    environment = {**os.environ, CORES_VARIABLE: str(core)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [str(core)], done.stderr
