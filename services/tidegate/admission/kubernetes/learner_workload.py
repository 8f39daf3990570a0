"""The learner's pods as what holds them: a StatefulSet is scaled, a JobSet is suspended."""

from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.objects import JobSet, Scale
from tidegate.runtime.kubernetes_api import Api


class LearnerWorkload:
    """A number of pods for both: a suspended JobSet has 0, and any other JobSet counts as 1."""

    def __init__(self, api: Api, access: Access) -> None:
        self._api = api
        self._is_job_set = access.learner_is_job_set
        group, plural = (
            ("jobset.x-k8s.io/v1alpha2", "jobsets") if self._is_job_set else ("apps/v1", "statefulsets")
        )
        whole = f"/apis/{group}/namespaces/{access.namespace}/{plural}/{access.learner}"
        self.path = whole if self._is_job_set else f"{whole}/scale"

    async def replicas(self) -> int:
        """The number that is wanted now.

        Raises:
            TidegateError: the API server rejected the request or did not answer.
        """
        if self._is_job_set:
            return 0 if (await self._api.get(self.path, JobSet)).spec.suspend else 1
        return (await self._api.get(self.path, Scale)).spec.replicas

    def change(self, replicas: int) -> dict[str, object]:
        """The patch of ``path`` that wants another number."""
        return {"spec": {"suspend": replicas == 0} if self._is_job_set else {"replicas": replicas}}
