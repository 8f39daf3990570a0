"""Who may take a replica, and whether its file or the replica is the truth."""

import pytest

from tidegate.core.errors import StaleFolderError
from tidegate.runtime.replication.ownership import SILENT_S, Local, Plan, Remote, plan_start

GONE, NEVER = Local(exists=False), Local(exists=True)
HEARD = 0.0


def remote(epoch: int = 3, *, whole: bool = True, silent_s: float = SILENT_S, through: int = 0) -> Remote:
    return Remote("run-1", 5, epoch, whole=whole, silent_s=silent_s, through=through)


def planned(local: Local, there: Remote | None) -> Plan | None:
    return plan_start(local, there, run_id="run-1", schema_version=5, place="tidegate_run_1")


@pytest.mark.parametrize(
    ("local", "there", "plan"),
    [
        (GONE, None, "copy"),
        (NEVER, None, "copy"),
        (Local(exists=True, epoch=3), remote(3), "push"),
        # It was the owner itself: it does not wait.
        (Local(exists=True, epoch=3), remote(3, silent_s=HEARD), "push"),
        # The file lacks no note that PostgreSQL does not have.
        (Local(exists=True, epoch=3, pushed_through=7), remote(3, through=7), "push"),
        # An asynchronous standby was promoted: the file has what PostgreSQL lost.
        (Local(exists=True, epoch=3, pushed_through=8), remote(3, through=7), "copy"),
        (GONE, remote(3), "fill"),
        (Local(exists=True, epoch=2), remote(3), "fill"),
        (GONE, remote(3, silent_s=HEARD), None),
        (Local(exists=True, epoch=2), remote(3, silent_s=HEARD), None),
        # A first copy that was never finished: no answer was sent by then.
        (GONE, remote(1, whole=False), "copy"),
        (Local(exists=True, epoch=1), remote(1, whole=False, silent_s=HEARD), "copy"),
        # Another one may be about to finish it.
        (GONE, remote(1, whole=False, silent_s=HEARD), None),
        (NEVER, remote(1, whole=False, silent_s=HEARD), None),
        # The first owner was killed between taking the replica and saying so in its file.
        (Local(exists=True, epoch=1), remote(2, whole=False), "copy"),
    ],
)
def test_what_a_start_does(local: Local, there: Remote | None, plan: Plan | None) -> None:
    assert planned(local, there) == plan


@pytest.mark.parametrize(
    ("local", "there", "word"),
    [
        (NEVER, remote(3), "different times"),
        (Local(exists=True, epoch=4), remote(3), "different times"),
        (GONE, Remote("run-2", 5, 3, whole=True, silent_s=60.0), "belongs to run 'run-2'"),
        (GONE, Remote("run-1", 4, 3, whole=True, silent_s=60.0), "schema version 4"),
    ],
)
def test_replica_of_another_run_version_or_time_is_refused(local: Local, there: Remote, word: str) -> None:
    with pytest.raises(StaleFolderError, match=word):
        planned(local, there)
