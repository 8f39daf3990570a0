"""The client of OpenEnv servers, held to a server of the library itself."""

import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tidegate.core.errors import ConfigError, RecordError, UnavailableError
from tidegate.environment.libraries.openenv import OpenEnvTask
from tidegate.environment.tasks.port import Problem

pytestmark = [
    pytest.mark.integration,
    pytest.mark.extended,
    pytest.mark.skipif(find_spec("openenv") is None, reason="needs the package openenv"),
]

SERVER = Path(__file__).parent / "openenv_countdown.py"
START_S = 240.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def task(address: str) -> OpenEnvTask:
    task = OpenEnvTask(url=address, turns_max=3, deadline_s=30.0)
    until_s = time.monotonic() + START_S
    while True:
        try:
            task.problems()
        except ConfigError:
            assert time.monotonic() < until_s, "the server did not start"
            time.sleep(0.5)
        else:
            return task


def problem(seed: int) -> Problem:
    return Problem(f"seed-{seed}", f"seed {seed}", "", "all")


def test_an_episode_of_the_library_has_its_observations_rewards_and_end(task: OpenEnvTask) -> None:
    episode = task.begin(problem(5), 0)
    assert episode.opening == "5 left"
    assert episode.reply("two").observation == "invalid action: an action is of type integer"
    assert episode.reply("2").observation == "3 left"
    last = episode.reply("3")
    assert last.score is not None
    assert (last.score.reward, last.truncated) == (5.0, False)
    episode.close()


def test_an_error_of_the_environment_is_the_episodes(task: OpenEnvTask) -> None:
    episode = task.begin(problem(5), 0)
    with pytest.raises(RecordError, match="EXECUTION_ERROR: a defect"):
        episode.reply("13")
    episode.close()


def test_a_server_without_room_says_so_and_has_it_again(task: OpenEnvTask) -> None:
    open_episodes = [task.begin(problem(5), 0), task.begin(problem(6), 0)]
    with pytest.raises(UnavailableError, match="no room for another session"):
        task.begin(problem(7), 0)
    for episode in open_episodes:
        episode.close()
    until_s = time.monotonic() + 60.0
    while True:
        try:
            task.begin(problem(7), 0).close()
        except UnavailableError:
            assert time.monotonic() < until_s, "the places were not freed"
            time.sleep(0.1)
        else:
            return
