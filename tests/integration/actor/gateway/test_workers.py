"""Workers beside a gateway: they claim its episodes, are started again, and end with it."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.actor.gateway.harness import with_config
from tests.integration.actor.gateway.test_runner import agents, made_of, question, samples_of
from tests.support.processes import is_alive
from tests.support.service_harness import until
from tests.unit.actor.gateway.fakes import ScriptedEngine
from tidegate.actor.gateway import workers
from tidegate.actor.gateway.runner import AgentRunner
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import UnavailableError
from tidegate.runtime.retrying import Backoff
from tidegate.runtime.stats_board import StatsBoard

pytestmark = pytest.mark.integration

# Claims episodes and answers each by one call; notes each start by its process id.
WORKER = """
import json, os, sys, time, urllib.request
def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": "Bearer " + key})
    request.method = "POST"
    return json.loads(urllib.request.urlopen(request, timeout=60).read())
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
workload = json.loads(os.environ["TIDEGATE_WORKLOAD"])
for _ in range(int(sys.argv[2])):
    episode = post(
        os.environ["TIDEGATE_GATEWAY_URL"] + "/tidegate/episodes?wait_s=60", os.environ["TIDEGATE_GATEWAY_KEY"], {}
    )
    messages = [{"role": "user", "content": episode["task"]["prompt"]}]
    post(episode["base_url"] + "/chat/completions", episode["api_key"], {"messages": messages})
    number = float(os.environ["TIDEGATE_WORKER_EPISODES"])
    post(episode["reward_url"], episode["reward_key"], {"reward": number, "log": workload["env"]})
"""


@asynccontextmanager
async def worked(
    folder: Path, *, num_episodes: int, num_samples: int = 2, stats: StatsBoard | None = None
) -> AsyncGenerator[AgentRunner]:
    command = (sys.executable, "-c", WORKER, str(folder / "starts"), str(num_episodes))
    config = with_config(command=command, workers=2, episodes_max=6)
    async with agents(
        ScriptedEngine(lambda context: "569"), config, folder, num_samples=num_samples, stats=stats
    ) as runner:
        keeping = asyncio.create_task(runner.keep_workers())
        try:
            yield runner
        finally:
            runner.stop()
            await keeping


def starts_in(folder: Path) -> list[int]:
    path = folder / "starts"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_workers_play_a_task_with_the_address_the_key_and_the_workload(tmp_path: Path) -> None:
    async with worked(tmp_path, num_episodes=100) as runner:
        samples = samples_of(await made_of(runner, question(num_samples=2)))
        # Six episodes by two workers.
        assert [(each.reward, each.log) for each in samples] == [(3.0, "calculator")] * 2
        await until(lambda: len(starts_in(tmp_path)) == 2)
        pids = starts_in(tmp_path)
    assert [is_alive(pid) for pid in pids] == [False, False]


async def test_a_worker_that_ends_is_started_again(tmp_path: Path) -> None:
    stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
    async with worked(tmp_path, num_episodes=1, num_samples=6, stats=stats) as runner:
        assert len(samples_of(await made_of(runner, question(num_samples=6)))) == 6
    assert len(starts_in(tmp_path)) >= 6
    assert stats.value(gateway_stats.PROGRAMS_FAILED) >= 4


async def test_a_worker_that_ends_whenever_it_is_started_ends_the_actor_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no such environment')")
    config = with_config(command=command, workers=1)
    async with agents(ScriptedEngine(str), config, tmp_path) as runner:
        monkeypatch.setattr(workers, "BACKOFF", Backoff(start_s=0.01, max_s=60.0))
        with pytest.raises(UnavailableError, match=r"whenever it is started.*no such environment"):
            await asyncio.wait_for(runner.keep_workers(), timeout=120.0)
