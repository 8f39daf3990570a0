"""The TrainingRun's status, and the Events for changes of its conditions."""

from collections.abc import Iterator

from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.events import Regarding
from tidegate.admission.kubernetes.training_run import (
    AT_ZERO,
    COMPLETED,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    RunCondition,
    RunSnapshot,
    TrainingRun,
    conditions_of,
    status_of,
)
from tidegate.runtime.kubernetes_api import Api

# Reason of the Event when a condition changes to a status, and whether it is a warning. A condition that is observed
# for the first time has not changed.
NAMED: dict[tuple[str, str], tuple[str, bool]] = {
    ("StalenessWithinSLO", "False"): ("StalenessSLOBreached", True),
    ("StalenessWithinSLO", "True"): ("StalenessSLORecovered", False),
    ("LearnerAvailable", "False"): ("LearnerUnavailable", True),
    ("LearnerAvailable", "True"): ("LearnerAvailable", False),
    ("Backpressured", "True"): ("Backpressured", True),
    ("WeightsCurrent", "False"): ("WeightSyncStalled", True),
    ("Suspended", "True"): ("AdmissionPaused", False),
    ("Suspended", "False"): ("AdmissionResumed", False),
    ("Completed", "True"): ("Completed", False),
    ("Accepted", "False"): ("BeyondRunFile", True),
}


class StatusReporter:
    """Compares with the last report, so that only changes become Events and unchanged status is not rewritten."""

    def __init__(self, api: Api, access: Access, *, status_s: float) -> None:
        self._api, self._access, self._status_s = api, access, status_s
        self._said: dict[str, RunCondition] = {}
        self._written: dict[str, str] = {}
        self._written_at_s: float | None = None
        folder = f"/apis/{GROUP}/{VERSION}/namespaces/{access.namespace}/{PLURAL}"
        self.path = f"{folder}/{access.run}"

    def changes(self, snapshot: RunSnapshot) -> Iterator[tuple[str, str, bool]]:
        """Reason, note and whether it is a warning, of every change since the last call that has an Event."""
        before, self._said = self._said, {condition.type: condition for condition in conditions_of(snapshot)}
        for name, condition in self._said.items():
            known = before.get(name)
            if known is None:
                continue
            conflict = condition.reason == "ConflictingScaler" != known.reason
            if conflict:
                yield condition.reason, condition.message, True
            elif condition.status != known.status and known.status != "Unknown":
                named = NAMED.get((name, condition.status))
                if named is not None and condition.reason not in (COMPLETED, AT_ZERO):
                    yield (
                        named[0],
                        condition.message or f"{name} is {condition.status}: {condition.reason}",
                        named[1],
                    )

    def is_due(self, run: TrainingRun, snapshot: RunSnapshot, *, now_s: float) -> bool:
        """Whether to write the status: immediately when a condition or the spec changed, else every ``status_s``."""
        if self._written_at_s is None or self._states(run, snapshot) != self._written:
            return True
        return now_s - self._written_at_s >= self._status_s

    async def write(self, run: TrainingRun, snapshot: RunSnapshot, *, now_s: float, wall_s: float) -> None:
        """Apply admission's part of the status; the operator of managed runs has another one.

        Raises:
            TidegateError: the API server rejected it or did not answer; it is due again at the next round.
        """
        meta = run.metadata
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": meta.name, "namespace": self._access.namespace, "uid": meta.uid},
            "status": status_of(run, snapshot, conditions_of(snapshot), wall_s=wall_s),
        }
        await self._api.apply(f"{self.path}/status", body)
        self._written, self._written_at_s = self._states(run, snapshot), now_s

    def reference(self, run: TrainingRun) -> Regarding:
        """The TrainingRun as an Event refers to it."""
        return Regarding(
            f"{GROUP}/{VERSION}", KIND, run.metadata.name, self._access.namespace, run.metadata.uid
        )

    @staticmethod
    def _states(run: TrainingRun, snapshot: RunSnapshot) -> dict[str, str]:
        states = {
            condition.type: f"{condition.status} {condition.reason}" for condition in conditions_of(snapshot)
        }
        return {**states, "generation": str(run.metadata.generation)}
