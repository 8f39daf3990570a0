"""Where admission has several pods, the one that holds the Lease works. This is what the others do meanwhile.

Nothing of a pod that stands by is built: its state is read from the broker when it takes over
(``admission.kept_files``), so it takes what the leader before it published last. It asks for the Lease each
``sync_s``: one that was released is taken then, one whose holder fell silent after its ``lease_s``. A pod that starts
while the API server does not answer waits for it; a leader goes on (``admission.limits_subject``).
"""

import os
from collections.abc import Coroutine
from typing import Any

from tidegate.admission.config import AdmissionConfig
from tidegate.admission.kubernetes.access import LEADER_FILE, Access, access_from
from tidegate.admission.kubernetes.leader_label import LeaderLabel
from tidegate.admission.kubernetes.lease import Election
from tidegate.admission.kubernetes.main import connect_to_cluster
from tidegate.catalogue import admission as statistics
from tidegate.core.errors import TidegateError
from tidegate.runtime.failure_log import ProblemLog
from tidegate.runtime.service import ServiceContext


def turn(context: ServiceContext, config: AdmissionConfig) -> Coroutine[Any, Any, None] | None:
    """Waits until this pod leads; None where admission has one pod.

    Raises:
        ConfigError: access is enabled and the environment names no release or no Deployment.
    """
    access = access_from(os.environ)
    return None if access is None or not access.pods else _lead_or_drain(context, config, access)


async def _lead_or_drain(context: ServiceContext, config: AdmissionConfig, access: Access) -> None:
    """Return as the holder of the Lease, or once draining.

    Raises:
        ConfigError: there are no credentials for the API server.
        OSError: the disk refused.
    """
    kubernetes, clock, stats = config.kubernetes, context.clock, context.stats
    api = await connect_to_cluster(kubernetes)
    election, label = Election(api, access, lease_s=kubernetes.lease_s), LeaderLabel(api, access)
    is_marked = True
    problems = ProblemLog(context.log.bind(what="wait for the Lease"), "kubernetes_failed")
    stats.set(statistics.KUBERNETES_LEADER, 0.0)
    leader_file = context.data_dir / LEADER_FILE
    try:
        leader_file.unlink(missing_ok=True)
        while True:
            try:
                # Without the broker it could do nothing with it.
                if context.bus.connected and await election.renew(
                    now_s=clock.monotonic_s(), wall_s=clock.now_s()
                ):
                    leader_file.touch()
                    context.log.info("lease_taken", pod=access.identity)
                    return
                if is_marked:
                    await label.remove()
                    is_marked = False
                problems.note("")
            except TidegateError as error:
                stats.add(statistics.KUBERNETES_FAILURES)
                problems.note(str(error))
            if await context.drain.sleep(kubernetes.sync_s):
                return
    finally:
        await api.close()
