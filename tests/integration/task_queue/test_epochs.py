"""A queue that is killed while it admits resumes with the next prompt: every prompt once an epoch, none twice."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.ids import RunId
from tidegate.task_queue.journal import open_journal
from tidegate.wire.convert import task_from_bytes

NUM_PROMPTS = 400

# The queue's parts in the order of its loop, at full speed.
_ADMITTING = """
import sys
import time
from pathlib import Path
from typing import Any
from tidegate.core.admission import Limits
from tidegate.core.curriculum import Curriculum
from tidegate.core.ids import LineageName, PolicyVersion, RunId
from tidegate.core.records import Sampler
from tidegate.core.staleness import LineageTree
from tidegate.task_queue.dataset import open_dataset
from tidegate.task_queue.journal import open_journal
from tidegate.task_queue.loops import TaskSource
from tidegate.task_queue.state import Snapshot, Workload, plan_tasks

folder, strategy = Path(sys.argv[1]), sys.argv[2]
journal = open_journal(folder / "journal.sqlite", run_id=RunId("r"))
dataset = open_dataset(folder / "train.jsonl")
source = TaskSource(dataset, Curriculum(dataset.bins, seed=7, strategy=strategy))
workload = Workload(RunId("r"), "group", "arithmetic", 2, 0, Sampler(), 7)
print("admitting", flush=True)
while True:
    snapshot = Snapshot(
        limits=Limits(max_lag=4, batch_size=4, max_running=1 << 30),
        counts=journal.counts,
        trained_at={},
        unpublished_tasks=0,
        head=PolicyVersion(LineageName("main"), 0),
        tree=LineageTree(),
    )
    prompts, curriculum = source.take(journal.curriculum, count=3)
    tasks = plan_tasks(
        snapshot, workload, first_seq=journal.next_seq, prompts=prompts, trace_parents=[""] * 3, now_s=0.0
    )
    journal.admit(tasks, curriculum=curriculum)
"""


@pytest.mark.parametrize("strategy", ["uniform", "learnable"])
def test_every_prompt_of_an_epoch_is_issued_once_whenever_the_queue_is_killed(
    tmp_path: Path, strategy: str
) -> None:
    (tmp_path / "train.jsonl").write_text(
        "".join(f'{{"prompt_id": "p{n}", "prompt": "{n}", "bin": "all"}}\n' for n in range(NUM_PROMPTS))
    )
    path, rng, num_kills = tmp_path / "journal.sqlite", random.Random(3), 0
    while num_kills < 4 or _num_issued(path) < 2 * NUM_PROMPTS:
        with subprocess.Popen(
            [sys.executable, "-c", _ADMITTING, str(tmp_path), strategy], stdout=subprocess.PIPE
        ) as queue:
            assert queue.stdout is not None
            assert queue.stdout.readline() == b"admitting\n"
            before = _num_issued(path)
            some_more = rng.randrange(1, NUM_PROMPTS // 2)
            while _num_issued(path) < before + some_more:
                assert queue.poll() is None
                time.sleep(0.001)
            queue.send_signal(signal.SIGKILL)
        num_kills += 1
    issued = _issued(path)
    everything = {f"p{number}" for number in range(NUM_PROMPTS)}
    first, second = issued[:NUM_PROMPTS], issued[NUM_PROMPTS : 2 * NUM_PROMPTS]
    assert set(first) == set(second) == everything
    assert first != second, "each epoch has a different order"
    journal = open_journal(path, run_id=RunId("r"))
    assert journal.curriculum.num_drawn == len(issued) == journal.next_seq - 1
    journal.close()


def _num_issued(path: Path) -> int:
    """Of a queue that may be admitting: as cheap as it can be, or the queue is far ahead before it is killed."""
    [(number,)] = _rows(path, "SELECT count(*) FROM tasks") or [(0,)]
    return number


def _issued(path: Path) -> list[str]:
    """Prompts in the order of their tasks."""
    return [task_from_bytes(spec).prompt_id for (spec,) in _rows(path, "SELECT spec FROM tasks ORDER BY seq")]


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:  # the tables are not there yet
        return []
    finally:
        connection.close()
