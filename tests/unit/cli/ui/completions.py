"""The folder of a language model's run with one group of two completions in its store."""

from pathlib import Path

import numpy as np

from tests.unit.cli.run_folder import LINEAGE, START_S
from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.cli.token_gaps import FILE
from tidegate.core.curriculum import CurriculumState
from tidegate.core.ids import GroupId, PolicyVersion, RunId, TaskId, TrajectoryId, task_id, trajectory_at
from tidegate.core.records import Sampler, StageTiming, Task, Trajectory, VersionSpan
from tidegate.core.staleness import Lineage
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record
from tidegate.learner.token_gaps_log import TokenGapsLog
from tidegate.task_queue.journal import open_journal
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.store import Store
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS

ARITHMETIC = Path(__file__).parents[4] / "runs" / "arithmetic.yaml"
FIRST, SECOND = trajectory_at(1, 0), trajectory_at(1, 1)
# Of CharTokenizer: "2", "3", "4", and the end of a turn.
TOKENS = (5, 6, 7, 2)
LOGPROBS = (-0.1, -2.0, -0.5, -0.01)
# Of the learner, of the first completion; it kept none of the second.
GAPS = (0.0, -0.5, 0.25, 0.0)


def write_completions(
    folder: Path, *, prompt: str = "1+2=", completion: str = "234", verifier_log: str = ""
) -> None:
    """Two completions of one prompt; the first two tokens of each are of version 0, the others of version 1."""
    record = new_record(read_run_file(ARITHMETIC, []))
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, record)
    run = RunId(record.run_id)
    for path in (ledger_path(folder), journal_path(folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
    first = PolicyVersion(LINEAGE, 0)
    task = Task(task_id(1), run, "group", first, num_samples=2, prompt=prompt, admitted_at_s=START_S)
    journal = open_journal(journal_path(folder), run_id=run)
    journal.admit([task], curriculum=CurriculumState())
    journal.close()
    store = Store(ledger_path(folder).parent, run_id=run, config=TrajectoryStoreConfig(), now_s=START_S)
    store.open_lineage(Lineage(name=LINEAGE), learner_id="learner-a", consumed=(), now_s=START_S)
    group = [
        _completion(run, each, reward, prompt=prompt, completion=completion, verifier_log=verifier_log)
        for each, reward in ((FIRST, 1.0), (SECOND, 0.25))
    ]
    headers = {HEADER_TRAJECTORY_IDS: f"{FIRST},{SECOND}"}
    message = ArrivedMessage(data=encode_frame(group), headers=headers, received_at_s=START_S + 1)
    store.ingest([message], now_s=START_S + 1)
    store.close()
    gaps_log = TokenGapsLog(folder / FILE)
    (folder / FILE).parent.mkdir(exist_ok=True)
    gaps_log.append(PolicyVersion(LINEAGE, 2), [(FIRST, np.array(GAPS, np.float16))])
    gaps_log.close()


def _completion(
    run: RunId, trajectory_id: TrajectoryId, reward: float, *, prompt: str, completion: str, verifier_log: str
) -> Trajectory:
    spans = (
        VersionSpan(PolicyVersion(LINEAGE, 0), start=0, stop=2),
        VersionSpan(PolicyVersion(LINEAGE, 1), start=2, stop=len(TOKENS)),
    )
    return Trajectory(
        trajectory_id=trajectory_id,
        run_id=run,
        task_id=TaskId(task_id(1)),
        group_id=GroupId(task_id(1)),
        group_size=2,
        spans=spans,
        tensors={
            "prompt_tokens": np.array([1, 4, 13, 5, 17], np.int32),
            "tokens": np.array(TOKENS, np.int32),
            "behavior_logprobs": np.array(LOGPROBS, np.float32),
        },
        num_steps=len(TOKENS),
        prompt=prompt,
        answer="3",
        completion=completion,
        reward=reward,
        reward_components={"exact": reward},
        verifier_log=verifier_log,
        sampler=Sampler(),
        actor_id="actor-0",
        env_id="arithmetic",
        length_tokens=len(TOKENS),
        finish_reason="stop",
        started_at_s=START_S + 0.5,
        finished_at_s=START_S + 0.9,
        stages=(StageTiming("trajectory.generate", "actor-0", START_S + 0.5, START_S + 0.9),),
    )
