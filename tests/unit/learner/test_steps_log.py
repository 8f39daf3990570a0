import json
from pathlib import Path

import msgspec
import pytest

from tests.support.disks import file_size_limited
from tidegate.learner.steps_log import StepLine, StepsLog

LINE = StepLine(
    step=1,
    lineage="0-aaaa",
    at_s=1.0,
    samples=2,
    env_steps=64,
    lag_mean=0.5,
    lag_max=1,
    by_lag={0: 1, 1: 1},
    age_mean_s=0.1,
    mean_return=None,
    mean_reward=None,
    loss=0.5,
    ess=1.0,
    clipped_fraction=0.0,
    wait_s=0.1,
    train_s=0.2,
    publish_s=0.3,
)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_lines_can_be_read_while_the_log_is_open(tmp_path: Path) -> None:
    log = StepsLog(tmp_path / "steps.jsonl", bytes_max=1 << 20)
    log.append(LINE)
    log.append(msgspec.structs.replace(LINE, step=2))
    read = [json.loads(line) for line in lines(tmp_path / "steps.jsonl")]
    assert [line["step"] for line in read] == [1, 2]
    assert read[0].keys() >= {
        "by_lag",
        "metrics",
        "mean_return",
        "mean_reward",
        "wait_s",
        "train_s",
        "publish_s",
    }


def test_next_life_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1}\n{"st', encoding="utf-8")
    StepsLog(path, bytes_max=1 << 20).append(LINE)
    found = lines(path)
    assert found[:2] == ['{"step": 1}', '{"st']
    assert json.loads(found[2])["step"] == 1


def test_file_is_bounded_and_one_older_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepsLog(path, bytes_max=1000)
    for step in range(20):
        log.append(msgspec.structs.replace(LINE, step=step))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["steps.jsonl", "steps.jsonl.1"]
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())
    steps = [json.loads(line)["step"] for line in [*lines(tmp_path / "steps.jsonl.1"), *lines(path)]]
    assert steps == list(range(steps[0], 20))


def test_line_that_a_full_disk_cuts_is_lost_alone(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepsLog(path, bytes_max=1 << 20)
    log.append(LINE)
    with file_size_limited(path.stat().st_size + 10), pytest.raises(OSError, match=r"No space|too large"):
        log.append(msgspec.structs.replace(LINE, step=2))
    log.append(msgspec.structs.replace(LINE, step=3))
    log.append(msgspec.structs.replace(LINE, step=4))
    whole = [json.loads(line)["step"] for line in lines(path) if line.endswith("}")]
    assert whole == [1, 3, 4]
