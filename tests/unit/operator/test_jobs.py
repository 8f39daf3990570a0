"""Jobs of helm: outcomes into records, stopping, and a stop that is asked for twice."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate.operator.config import HelmConfig
from tidegate.operator.decisions import JobInFlight
from tidegate.operator.helm import HelmResult
from tidegate.operator.jobs import JobOutcome, ReleaseJobs
from tidegate.operator.objects import ReleaseRecord, RunKey, WorkloadState
from tidegate.operator.plans import ReleasePlan
from tidegate.runtime.clock import SystemClock

KEY = RunKey("team-a", "rl")
PLAN = ReleasePlan(digest="d1", values={"run": {}})
CONFIG = HelmConfig(attempts=2, backoff_s=0.01, backoff_s_max=0.01)
BEFORE = ReleaseRecord(
    exists=True, digest="d0", failed="d1", failed_at="t", gpus=2, admitted=True, replicas={"a": 1}
)


class NoCluster:
    """Nothing of the release is there."""

    async def hold(self, key: RunKey, workload: WorkloadState) -> None: ...

    async def is_foreign(self, key: RunKey) -> bool:
        return False

    async def delete_unfinished(self, key: RunKey) -> int:
        return 0

    async def check_refusal(self, key: RunKey) -> str:
        return ""

    async def delete_check(self, key: RunKey) -> None: ...


class SlowHelm:
    """Works until it is cancelled, and then takes its time to end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended = False

    async def __call__(self, command: Sequence[str], home: Path, deadline_s: float) -> HelmResult:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
            self.ended = True
        raise AssertionError("it is cancelled")


@pytest.mark.parametrize(
    ("result", "changes"),
    [
        (
            "applied",
            {
                "digest": "d1",
                "failed": "",
                "refused": "",
                "failed_at": "",
                "applied_at": "1970-01-01T00:00:09Z",
            },
        ),
        ("refused", {"refused": "d1", "failed": "", "message": "no", "failed_at": "1970-01-01T00:00:09Z"}),
        ("failed", {"failed": "d1", "message": "no", "failed_at": "1970-01-01T00:00:09Z"}),
        ("uninstalled", {"exists": False, "gpus": 0, "admitted": False, "replicas": {}, "digest": "d0"}),
    ],
)
def test_an_outcome_becomes_part_of_the_record(result: str, changes: dict[str, object]) -> None:
    outcome = JobOutcome(result, "d1", 9.0, "no")  # pyright: ignore[reportArgumentType] -- parametrised by name
    record = outcome.into(BEFORE)
    assert {name: getattr(record, name) for name in changes} == changes


async def test_a_job_is_in_flight_until_its_helm_has_ended_however_often_it_is_stopped(
    tmp_path: Path,
) -> None:
    helm = SlowHelm()
    jobs = ReleaseJobs(NoCluster(), CONFIG, SystemClock(), folder=tmp_path, run=helm)
    jobs.apply(KEY, PLAN, (), is_new=True)
    await helm.started.wait()
    for _ in range(3):
        jobs.stop(KEY)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert jobs.ended() == {}
    assert jobs.in_flight(KEY) == JobInFlight("apply", "d1")
    assert not helm.ended
    helm.may_end.set()
    await jobs.close()
    assert helm.ended
    assert jobs.in_flight(KEY) is None
    assert os.listdir(tmp_path) == []


async def test_a_stopped_job_has_no_outcome(tmp_path: Path) -> None:
    helm = SlowHelm()
    helm.may_end.set()
    jobs = ReleaseJobs(NoCluster(), CONFIG, SystemClock(), folder=tmp_path, run=helm)
    jobs.apply(KEY, PLAN, (), is_new=True)
    await helm.started.wait()
    jobs.stop(KEY)
    async with asyncio.timeout(30.0):
        while jobs.in_flight(KEY) is not None:
            assert jobs.ended() == {}
            await asyncio.sleep(0.01)


async def test_values_that_cannot_be_written_are_a_failure(tmp_path: Path) -> None:
    jobs = ReleaseJobs(NoCluster(), CONFIG, SystemClock(), folder=tmp_path / "none", run=SlowHelm())
    jobs.apply(KEY, PLAN, (), is_new=True)
    async with asyncio.timeout(30.0):
        while not (ended := jobs.ended()):
            await asyncio.sleep(0.01)
    assert ended[KEY].result == "failed"
