"""A user's curriculum through the real queue and a real child process: what is drawn, and what its mistakes cost."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from tests.integration.task_queue.world import FakeStore, Taker, announce_version
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running, until
from tests.support.settings import make_settings
from tidegate.catalogue import task_queue as statistics
from tidegate.core.own_weights import CurriculumBin
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.journal import open_journal
from tidegate.task_queue.main import build
from tidegate.task_queue.own_curriculum.messages import Weighed, WeightsFailed, WeightsQuestion
from tidegate.task_queue.own_curriculum.process import CurriculumDeadlines, CurriculumProcess
from tidegate.wire.subjects import Topology

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HARDEST = """
def weights(bins, step, rng):
    return {"hard": 1.0}
"""
# By the step: what a test asks for.
MISTAKES = """
import os


def weights(bins, step, rng):
    if step == 1:
        raise ValueError("no bins today")
    if step == 2:
        while True:
            pass
    if step == 3:
        os._exit(3)
    if step == 4:
        if os.fork() == 0:
            return [0.0, 1.0]
        os.wait()
    print("weighed")
    return [1.0, 0.5]
"""


def question(step: int) -> WeightsQuestion:
    return WeightsQuestion((CurriculumBin("easy", 2), CurriculumBin("hard", 2)), step, 0)


async def test_mistakes_are_named_with_their_place_and_the_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES)
    reference = OwnReference("mistakes.py:weights", str(path), "weights", str(tmp_path))
    process = CurriculumProcess(reference, CurriculumDeadlines(3.0, 120.0), environ=os.environ)
    try:
        assert await process.weigh(question(0)) == Weighed([1.0, 0.5])
        raised = await process.weigh(question(1))
        assert isinstance(raised, WeightsFailed)
        assert raised.kind == "ValueError"
        assert "mistakes.py:7 in weights: no bins today" in raised.why
        assert "ValueError: no bins today" in raised.traceback
        hanging = asyncio.create_task(process.weigh(question(2)))
        turns = 0
        while not hanging.done():
            await asyncio.sleep(0.01)
            turns += 1
        late = await hanging
        assert turns > 20, "the event loop goes on while the code computes"
        assert isinstance(late, WeightsFailed)
        assert late.kind == "deadline"
        assert "it did not end within 3 s" in late.why
        assert await process.weigh(question(0)) == Weighed([1.0, 0.5])
        ended = await process.weigh(question(3))
        assert isinstance(ended, WeightsFailed)
        assert "exit code 3" in ended.why
        assert await process.weigh(question(4)) == Weighed([1.0, 0.5])
    finally:
        await process.close()


async def test_tasks_come_from_the_bins_that_the_code_weighs_from_the_first_one_on(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=0)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text(
        "".join(
            f'{{"prompt_id": "p{number}", "prompt": "{number}", "bin": "{"hard" if number == 3 else "easy"}"}}\n'
            for number in range(8)
        )
    )
    (tmp_path / "mine.py").write_text(HARDEST)
    settings = msgspec.structs.replace(
        settings,
        workload=WorkloadConfig(kind="text", env="arithmetic", num_samples=2),
        batch_size=4,
        files_dir=str(tmp_path),
    )
    config = TaskQueueConfig(curriculum="mine.py:weights", limits_refresh_s=0.1)
    store, taker = FakeStore(), Taker(bus, topology)
    async with store.serving(settings.addresses["trajectory_store"][0]):
        context = make_context("task_queue", settings, bus=bus)
        async with running(build, config, context):
            await announce_version(bus, topology, 0)
            tasks = await taker.take(2)
            assert {task.curriculum_bin for task in tasks} == {"hard"}
            await until(lambda: context.stats.value(statistics.ADMITTED) == 4)
            assert context.stats.value(statistics.CURRICULUM_FAILURES) == 0
    journal = open_journal(context.data_dir / "journal.sqlite", run_id=settings.run)
    assert journal.curriculum.weights == {"easy": 0.0, "hard": 1.0}, "a restart draws by it at once"
    journal.close()
