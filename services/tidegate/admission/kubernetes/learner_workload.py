"""The learner's pods as what holds them: a StatefulSet is scaled, a JobSet or TrainJob is suspended."""

from collections.abc import Mapping

from tidegate.admission.kubernetes.access import Access, LearnerKind
from tidegate.admission.kubernetes.objects import Scale, Suspendable
from tidegate.runtime.kubernetes_api import Api

# Version of the API, and the resource that is read and patched.
_RESOURCES: Mapping[LearnerKind, tuple[str, str]] = {
    "StatefulSet": ("apps/v1", "statefulsets"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
}


class LearnerWorkload:
    """A number of pods for all: what is suspended has 0, and any other JobSet or TrainJob counts as 1."""

    def __init__(self, api: Api, access: Access) -> None:
        self._api = api
        self._is_suspendable = access.learner_kind != "StatefulSet"
        version, plural = _RESOURCES[access.learner_kind]
        whole = f"/apis/{version}/namespaces/{access.namespace}/{plural}/{access.learner}"
        self.path = whole if self._is_suspendable else f"{whole}/scale"

    async def replicas(self) -> int:
        """The number that is wanted now.

        Raises:
            TidegateError: the API server rejected the request or did not answer.
        """
        if self._is_suspendable:
            return 0 if (await self._api.get(self.path, Suspendable)).spec.suspend else 1
        return (await self._api.get(self.path, Scale)).spec.replicas

    def change(self, replicas: int) -> dict[str, object]:
        """The patch of ``path`` that wants another number."""
        return {"spec": {"suspend": replicas == 0} if self._is_suspendable else {"replicas": replicas}}
