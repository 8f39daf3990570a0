"""Connects admission to the cluster, where there is one."""

import os

from tidegate.admission.config import KubernetesConfig
from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.cluster import ClusterLoop
from tidegate.admission.loops import Admission
from tidegate.catalogue import admission as statistics
from tidegate.core.errors import TidegateError
from tidegate.runtime.kubernetes_api import Api, connect
from tidegate.runtime.service import ServiceContext

# Set in every pod.
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


async def open_cluster(
    context: ServiceContext, admission: Admission, config: KubernetesConfig, access: Access | None
) -> tuple[ClusterLoop, Api] | None:
    """The loop, and the connections to close after it; None without access, or when connecting fails."""
    if access is None:
        return None
    try:
        api = await connect_to_cluster(config)
    except TidegateError as error:
        # Operators then scale the actors; limits and pauses need no cluster.
        context.log.warning("kubernetes_failed", what="connect", error=str(error))
        context.stats.add(statistics.KUBERNETES_FAILURES)
        context.stats.label(statistics.KUBERNETES_TROUBLES, "connect")
        return None
    return ClusterLoop(context, admission, config, access=access, api=api), api


async def connect_to_cluster(config: KubernetesConfig) -> Api:
    """The API server of the cluster that this pod runs in.

    Raises:
        ConfigError: the kubernetes package is not installed, or there are no credentials.
    """
    return await connect(
        deadline_s=config.deadline_s,
        in_cluster=IN_CLUSTER in os.environ,
        # The client reads KUBECONFIG only at import.
        kubeconfig=os.environ.get("KUBECONFIG"),
    )
