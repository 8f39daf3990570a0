"""The step log as its readers see it: bounded, and whole across a rotation."""

from pathlib import Path

import msgspec

from tests.unit.learner.test_steps_log import LINE
from tidegate.cli.up.history import STEPS_FILE, read_history, read_steps, step_files
from tidegate.learner.steps_log import StepsLog

BYTES_MAX = 8_192
NUM_STEPS = 200


def test_readers_see_a_bounded_log_in_order_across_its_rotations(tmp_path: Path) -> None:
    log = StepsLog(tmp_path / STEPS_FILE, bytes_max=BYTES_MAX)
    for step in range(NUM_STEPS):
        log.append(msgspec.structs.replace(LINE, step=step, at_s=float(step)))
    log.close()
    files = step_files(tmp_path)
    assert [file.name for file in files] == ["steps.jsonl.1", "steps.jsonl"]
    assert sum(file.stat().st_size for file in files) <= 2 * BYTES_MAX
    steps = [each["step"] for each in read_steps(tmp_path)]
    assert steps == list(range(NUM_STEPS - len(steps), NUM_STEPS))
    assert len(steps) > BYTES_MAX // 300, "at least the older file is kept whole"
    assert read_history(tmp_path, "loss")[-1] == (NUM_STEPS - 1.0, LINE.loss)
