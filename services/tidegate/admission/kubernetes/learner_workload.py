"""The learner's pods at the end of a run: a StatefulSet is scaled to 0; a JobSet or TrainJob completes.

A Job is over once its pods have ended with 0, which Kueue, workflows and bills wait for. So the learner itself is told
that the run is complete, and admission needs no access to the object, which Kueue would start again if it were
suspended.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.objects import Scale
from tidegate.admission.loops import Admission
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.kubernetes_api import Api
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.learner import LearnerClient

Patch: TypeAlias = Callable[[str, object], Awaitable[bool]]


class LearnerWorkload(Protocol):
    """What holds the learner's pods. ``restart``: how a person starts it again after its end; empty where it scales."""

    restart: str

    async def replicas(self) -> int:
        """The number that is wanted now.

        Raises:
            TidegateError: the API server rejected the request or did not answer.
        """
        ...

    async def scale(self, replicas: int, *, reason: str) -> bool:
        """Want another number, of one with a ``restart`` 0 only; returns True.

        Raises:
            TidegateError: the server rejected the request or did not answer.
        """
        ...


class ScaledLearner:
    """A StatefulSet."""

    restart = ""

    def __init__(self, api: Api, access: Access, patch: Patch) -> None:
        self._api, self._patch = api, patch
        self._path = f"/apis/apps/v1/namespaces/{access.namespace}/statefulsets/{access.learner}/scale"

    async def replicas(self) -> int:
        """See ``LearnerWorkload``."""
        return (await self._api.get(self._path, Scale)).spec.replicas

    async def scale(self, replicas: int, *, reason: str) -> bool:
        """See ``LearnerWorkload``."""
        return await self._patch(self._path, {"spec": {"replicas": replicas}})


class JobLearner:
    """A JobSet or TrainJob: there while a learner reports that was not told to end."""

    def __init__(self, context: ServiceContext, admission: Admission, access: Access) -> None:
        self._admission = admission
        self._client = LearnerClient(context.channel("learner"))
        # When the processes started that were told to end; an instance keeps its name over restarts.
        self._told: frozenset[float] = frozenset()
        kind, name = access.learner_kind, access.learner
        self.restart = (
            f"The {kind} {name} has completed, and a Job does not start again: kubectl delete {kind.lower()} {name}, "
            "then helm upgrade; the learner goes on from its last checkpoint"
        )

    async def replicas(self) -> int:
        """See ``LearnerWorkload``. One that was killed before it could end is made again by its Job, and counts."""
        return len(self._started() - self._told)

    async def scale(self, replicas: int, *, reason: str) -> bool:
        """See ``LearnerWorkload``."""
        told = self._started()
        try:
            await self._client.complete(reason=reason)
        except UnavailableError as error:  # which is not the API server's
            raise TidegateError("The learner did not answer", why=str(error)) from error
        self._told = told
        return True

    def _started(self) -> frozenset[float]:
        return frozenset(report.started_at_s for report in self._admission.reports("learner"))


def learner_workload(
    context: ServiceContext, admission: Admission, *, access: Access, api: Api, patch: Patch
) -> LearnerWorkload:
    """The one of the learner's kind; ``patch`` sends a path's patch to the API server and counts it."""
    if access.learner_kind == "StatefulSet":
        return ScaledLearner(api, access, patch)
    return JobLearner(context, admission, access)
