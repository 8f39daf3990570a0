"""One rank of a group, in a process of its own.

Rank 0 leads through the scenario, the others follow. The last line of the output reports how it ended.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from tests.unit.learner.ranks.test_equality import actor_critic, groups, language_model, segments
from tidegate.core.errors import TidegateError
from tidegate.core.records import Trajectory
from tidegate.learner.ranks.following import follow
from tidegate.learner.ranks.group import RankGroup
from tidegate.learner.ranks.leading import LeadingTrainer
from tidegate.learner.ranks.membership import membership
from tidegate.learner.ranks.port import Ranks, SharedTrainer
from tidegate.runtime.stats_board import StatsBoard

# Far above what a busy machine takes for an exchange, except where the test waits for it to pass.
TIMEOUT_S = 60.0
SHORT_TIMEOUT_S = {"idle": 8.0, "hang": 8.0}
IDLE_S = 1.5 * SHORT_TIMEOUT_S["idle"]
UPDATES = 3


def make(kind: str, ranks: Ranks) -> SharedTrainer:
    return actor_critic(ranks) if kind == "actor_critic" else language_model(ranks)


def batch(kind: str, number: int) -> list[Trajectory]:
    return segments(number, num_segments=2) if kind == "actor_critic" else groups(number, num_groups=5)


def main(scenario: str, kind: str, folder: Path, output: Path, environment: Mapping[str, str]) -> None:
    """Be the rank that the environment names, with the output in a file."""
    os.environ.update(environment)
    with output.open("wb") as written:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(written.fileno(), stream.fileno())
    torch.set_num_threads(1)
    if kind == "language_model":
        torch.set_default_dtype(torch.float64)
    member = membership(os.environ)
    assert member is not None
    group = RankGroup(member, device=torch.device("cpu"), timeout_s=SHORT_TIMEOUT_S.get(scenario, TIMEOUT_S))
    trainer = make(kind, group)
    try:
        if member.rank == 0:
            lead(LeadingTrainer(trainer, group, stats=board()), scenario, kind, folder)
        else:
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
            if scenario == "mismatch":
                spoil(trainer)
            follow(trainer, group, asked_to_stop=stop.is_set)
    except TidegateError as error:
        report(f"{type(error).__name__}: {error}")
        sys.exit(1)
    finally:
        group.close()  # as the service does: threads of the backend that outlive the interpreter abort the process
    report("ended cleanly")


def lead(leading: LeadingTrainer, scenario: str, kind: str, folder: Path) -> None:
    if scenario != "mismatch":
        leading.share()
    if scenario == "back":
        before = leading.policy(), leading.state()
        for number in (7, 8):
            leading.update(leading.prepare(batch(kind, number)), number=number)
        leading.restore(*before)
    for number in range(1, UPDATES + 1):
        leading.update(leading.prepare(batch(kind, number)), number=number)
        if scenario == "idle" and number == 1:
            time.sleep(IDLE_S)
    np.savez(folder / "policy.npz", allow_pickle=False, **leading.policy())
    report("waiting")
    while scenario in ("leave", "wait", "hang") and not leading.leaving:
        if leading.problem is not None:
            raise leading.problem
        time.sleep(0.05)
    leading.stop()


def spoil(trainer: SharedTrainer) -> None:
    """One number of one parameter, by less than an update changes it."""
    with torch.no_grad():
        parameter = trainer.live()["value.0.bias"]
        parameter[0] += 1e-5


def board() -> StatsBoard:
    return StatsBoard(service="learner", instance="learner", started_at_s=0.0)


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
