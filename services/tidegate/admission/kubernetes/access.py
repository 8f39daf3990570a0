"""Names of this run's objects in the cluster, from the environment of admission's pod."""

from collections.abc import Mapping
from typing import Literal, cast, get_args

import msgspec

from tidegate.core.errors import ConfigError

ENABLED = "TIDEGATE_KUBERNETES"
# Names of admission's pods, where there are several.
PODS = "TIDEGATE_ADMISSION_PODS"
# In admission's folder while its pod leads, where there are several: the container that makes backups works beside the
# leader alone.
LEADER_FILE = "leader"
# What holds the learner's pods.
LearnerKind = Literal["StatefulSet", "JobSet", "TrainJob"]


class Access(msgspec.Struct, frozen=True):
    """Names in the cluster. ``identity`` holds the Lease.

    ``run`` is the TrainingRun's name, "" without the CRD. ``ranks_actors``: it may write the deletion cost of its pods.
    ``learner``: the object of its pods, which ends with the run; "" where admission does not end it.
    ``deployments``: of the actors; the first one is scaled, the others are counted. ``selector``: of the actors' pods.
    ``pods``: of admission; the holder of the Lease works and the others stand by. Empty where it has only one.
    """

    namespace: str
    identity: str
    release: str
    deployments: tuple[str, ...]
    lease: str
    selector: str
    run: str = ""
    ranks_actors: bool = False
    learner: str = ""
    learner_kind: LearnerKind = "StatefulSet"
    pods: tuple[str, ...] = ()


def access_from(environ: Mapping[str, str]) -> Access | None:
    """The names as the chart sets them; None without Kubernetes access.

    Raises:
        ConfigError: access is enabled, and a name is missing or the kind of the learner unknown.
    """
    if environ.get(ENABLED, "") != "1":
        return None
    namespace, release = _named(environ, "TIDEGATE_NAMESPACE"), _named(environ, "TIDEGATE_RELEASE")
    selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=actor"
    return Access(
        namespace=namespace,
        identity=_named(environ, "TIDEGATE_POD_NAME"),
        release=release,
        deployments=_names(_named(environ, "TIDEGATE_ACTOR_DEPLOYMENTS")),
        lease=environ.get("TIDEGATE_LEASE") or f"{release}-admission-leader",
        selector=environ.get("TIDEGATE_ACTOR_SELECTOR") or selector,
        run=(environ.get("TIDEGATE_TRAINING_RUN") or release) if environ.get("TIDEGATE_CRD") == "1" else "",
        ranks_actors=environ.get("TIDEGATE_RANK_ACTORS", "") == "1",
        learner=environ.get("TIDEGATE_LEARNER", ""),
        learner_kind=_learner_kind(environ),
        pods=_names(environ.get(PODS, "")),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _learner_kind(environ: Mapping[str, str]) -> LearnerKind:
    kind = environ.get("TIDEGATE_LEARNER_KIND") or "StatefulSet"
    if kind not in get_args(LearnerKind):
        raise ConfigError(
            f"TIDEGATE_LEARNER_KIND is {kind}, which is none of {', '.join(get_args(LearnerKind))}",
            fix="install by the chart, which sets it",
        )
    return cast("LearnerKind", kind)


def _named(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(
            f"{ENABLED} is 1 and {name} is not set", fix="install by the chart, which sets it, or unset both"
        )
    return value
