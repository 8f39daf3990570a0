"""The cores that processes of a run may use: who gets which, and that each thread and child has them."""

import os
import subprocess
import sys
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
    [
        ("{lerner: [0]}", "'lerner', which is no service"),
        ("{others: [1], learner: []}", r"cores.learner is \[\]; it must be a list, .*, not empty"),
        ("{others: [1], learner: [0, -1]}", r"cores.learner.1 is -1; it must be a whole number >= 0"),
    ],
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


# Prints the cores of a thread.
SHOW = "import os, threading; threading.Thread(target=lambda: print(*os.sched_getaffinity(0))).start()"
# The broker's program becomes another one. A service does no more here than refuse its arguments.
BROKER = ["-m", "tidegate.launch.guarded", sys.executable, "-c", SHOW]
SERVICE = [
    "-c",
    "from contextlib import suppress\nfrom tidegate.launch import serve\n"
    f"with suppress(SystemExit): serve.main(['learner', '--cluster', 'x'])\n{SHOW}",
]


@NEEDS_LINUX
@pytest.mark.parametrize("arguments", [BROKER, SERVICE], ids=["broker", "service"])
def test_threads_and_programs_of_a_process_have_its_cores(arguments: list[str]) -> None:
    core = max(os.sched_getaffinity(0))
    environment = {**os.environ, CORES_VARIABLE: str(core)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [str(core)], done.stderr
