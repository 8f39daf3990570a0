"""The learner's pods as what holds them: a StatefulSet is scaled, a JobSet or TrainJob is suspended."""

from tidegate.admission.kubernetes.access import LEARNER_RESOURCES, Access
from tidegate.admission.kubernetes.objects import Scale, Suspendable
from tidegate.runtime.kubernetes_api import Api


class LearnerWorkload:
    """A number of pods for all: what is suspended has 0, and any other JobSet or TrainJob counts as 1."""

    def __init__(self, api: Api, access: Access) -> None:
        self._api = api
        found = LEARNER_RESOURCES[access.learner_kind]
        self._is_scaled = found.is_scaled
        api_path = f"/apis/{found.group}/{found.version}/namespaces/{access.namespace}"
        whole = f"{api_path}/{found.plural}/{access.learner}"
        self.path = f"{whole}/scale" if found.is_scaled else whole

    async def replicas(self) -> int:
        """The number that is wanted now.

        Raises:
            TidegateError: the API server rejected the request or did not answer.
        """
        if self._is_scaled:
            return (await self._api.get(self.path, Scale)).spec.replicas
        return 0 if (await self._api.get(self.path, Suspendable)).spec.suspend else 1

    def change(self, replicas: int) -> dict[str, object]:
        """The patch of ``path`` that wants another number."""
        return {"spec": {"replicas": replicas} if self._is_scaled else {"suspend": replicas == 0}}
