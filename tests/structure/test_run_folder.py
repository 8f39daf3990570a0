"""docs/run_folder.md: bounds of files are those of the code, and every file with a bound is in the list of files."""

import re
from pathlib import Path

import pytest

from tidegate.admission.config import AdmissionConfig
from tidegate.admission.slo_watch import EVENTS_FILE_BYTES_MAX
from tidegate.cli.callbacks import watch as callbacks
from tidegate.launch import supervisor
from tidegate.launch.broker import FILE_STORE_BYTES_MAX
from tidegate.learner import token_gaps_log
from tidegate.learner.config import LearnerConfig
from tidegate.runtime import run_event_log
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.weight_distribution.config import WeightDistributionConfig

TEXT = (Path(__file__).parents[2] / "docs" / "run_folder.md").read_text(encoding="utf-8")
HEADING = "How large it becomes"
MIB, GIB = 1 << 20, 1 << 30
SECTIONS: dict[str, object] = {
    "admission": AdmissionConfig(),
    "learner": LearnerConfig(),
    "task_queue": TaskQueueConfig(),
    "trajectory_store": TrajectoryStoreConfig(),
    "weight_distribution": WeightDistributionConfig(),
}
# Bounds that are no settings, by the row of their file.
CONSTANTS = {
    "admission/slo_events.jsonl": f"{EVENTS_FILE_BYTES_MAX // MIB} MiB",
    "admission/events.jsonl": f"{run_event_log.BYTES_MAX // MIB} MiB",
    "events.jsonl": f"{run_event_log.BYTES_MAX // MIB} MiB",
    "learner/token_gaps.jsonl": f"{token_gaps_log.BYTES_MAX // MIB} MiB",
    "logs/<process>.log": f"{supervisor.LOG_BYTES_MAX // MIB} MiB",
    "logs/callback-<number>-<name>.log": f"{callbacks.LOG_BYTES_MAX // MIB} MiB",
    "nats/": f"{FILE_STORE_BYTES_MAX // GIB} GiB",
}


def bounds() -> dict[str, str]:
    """The bound of each file, from the table."""
    section = TEXT.partition(f"\n## {HEADING}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): cells[2].strip() for cells in rows}


def settings() -> list[tuple[str, str]]:
    return re.findall(r"`([\w.]+)` = (\d+)", " ".join(bounds().values()))


@pytest.mark.parametrize(("key", "written"), settings())
def test_bound_of_a_file_is_the_default_of_its_setting(key: str, written: str) -> None:
    section, *path = key.split(".")
    value = SECTIONS[section]
    for name in path:
        value = getattr(value, name)
    assert value == int(written)


def test_bound_that_is_no_setting_is_that_of_the_code() -> None:
    found = bounds()
    assert [file for file, size in CONSTANTS.items() if not found[file].startswith(f"{size}")] == []
    assert len(settings()) >= 14


def test_every_file_with_a_bound_is_in_the_list_of_files() -> None:
    files = TEXT.partition(f"\n## {HEADING}\n")[0]
    assert [file for file in bounds() if file.rstrip("/") not in files] == []


def test_every_file_of_lines_and_every_database_has_a_bound() -> None:
    listed = re.findall(r"`([\w/]+\.(?:jsonl|sqlite))`", TEXT.partition(f"\n## {HEADING}\n")[0])
    # Prompts are copied once.
    assert {file for file in listed if not file.startswith("data/")} <= bounds().keys()
