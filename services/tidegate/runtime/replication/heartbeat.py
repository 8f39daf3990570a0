"""The heartbeat of an owner that is not ready yet.

While it fills its file, or opens a large one, it pushes nothing, and an instance that waits for its turn would consider
it dead.
"""

import threading
from typing import TYPE_CHECKING, Self

from structlog.stdlib import BoundLogger

from tidegate.core.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.runtime.replication.database import ReplicaDatabase

PERIOD_S = 1.0
# A start that takes longer hangs.
START_S_MAX = 3600.0


class Heartbeat:
    """A thread that sends it once a period, between ``start`` and ``stop``, for ``START_S_MAX`` at most."""

    def __init__(self, database: "ReplicaDatabase", epoch: int, log: BoundLogger) -> None:
        self._database = database
        self._epoch = epoch
        self._log = log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more; one that is on its way may still arrive."""
        self._stopped.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self) -> None:
        for _ in range(int(START_S_MAX / PERIOD_S)):
            if self._stopped.wait(PERIOD_S):
                return
            try:
                self._database.send_heartbeat(epoch=self._epoch)
            except TidegateError as error:
                self._log.warning("heartbeat_failed", error=str(error))
