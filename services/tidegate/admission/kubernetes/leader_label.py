"""The label of the leading pod of admission, by which the chart's Service selects it where there are several."""

from tidegate.admission.kubernetes.access import Access
from tidegate.core.errors import NotFoundError
from tidegate.runtime.kubernetes_api import Api

LABEL = "tidegate.dev/leader"


class LeaderLabel:
    """Puts the label on one pod. RBAC lets admission change its own pods, a policy no more of them than this label."""

    def __init__(self, api: Api, access: Access) -> None:
        self._api, self._access = api, access

    async def take(self) -> bool:
        """Remove it from the other pods, then put it on this one; true.

        Raises:
            TidegateError: the API server did not answer, or denied it.
        """
        for pod in self._access.pods:
            if pod != self._access.identity:
                await self._set(pod, None)
        await self._set(self._access.identity, "true")
        return True

    async def remove(self) -> None:
        """Remove it from this pod, which stands by.

        Raises:
            TidegateError: as ``take``.
        """
        await self._set(self._access.identity, None)

    async def _set(self, pod: str, value: str | None) -> None:
        path = f"/api/v1/namespaces/{self._access.namespace}/pods/{pod}"
        try:
            await self._api.patch(path, {"metadata": {"labels": {LABEL: value}}})
        except NotFoundError:
            return  # not there yet, or not any more
