"""The operator's configuration: one YAML file, which its chart renders from values."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.config import TelemetryConfig

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
# Keys of `spec.values` that a TrainingRun may not set unless the configuration allows it: they reach beyond the pods
# of the run. `**.` means any section, `=` one value of a key.
FORBIDDEN = (
    "extraObjects",  # any object, with the operator's permissions
    "crd",
    "fullnameOverride",
    "priorityClasses",  # cluster-wide
    "admission.kubernetes.rankActors",  # cluster-wide: a policy
    "admission.replicas",  # the same
    "rules.scope=cluster",  # alerts and boards over the runs of others
    "dashboards.scope=cluster",
    "model.nodeCache",  # a folder of the node
    "**.hostNetwork",
    "**.hostIPC",
    "**.securityContext",
    "**.podSecurityContext",
    "**.extraVolumes",  # may be folders of the node
    "**.extraContainers",
    "**.initContainers",
    "**.workerContainers",
    "**.serviceAccountAnnotations",  # may be an identity at the cloud
    "run.environment.isolation",  # permissions in another namespace
)


class QuotaLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``runs`` and ``gpus`` at most at one time; None: no limit. A complete run counts for neither."""

    runs: Count | None = None
    gpus: Count | None = None


class QuotaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of all runs together, of each namespace that is named, and of each other one (``each_namespace``)."""

    total: QuotaLimits = QuotaLimits()
    each_namespace: QuotaLimits = QuotaLimits()
    namespaces: dict[str, QuotaLimits] = {}

    def of(self, namespace: str) -> QuotaLimits:
        """The limits of one namespace."""
        return self.namespaces.get(namespace, self.each_namespace)


class HelmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How helm is run.

    ``program`` and ``chart``: where they are in the operator's image. ``processes``: at the same time; each takes some
    150 MB. ``timeout_s`` (seconds): for the check of a run, pulling its image included. ``attempts``: calls until a
    release counts as failed; the pause between two doubles from ``backoff_s`` to ``backoff_s_max``. ``retry_s``
    (seconds): a failed one is tried again after this. ``history_max``: revisions of a release that are kept.
    """

    program: str = "helm"
    chart: str = "/opt/tidegate/chart"
    processes: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    timeout_s: Annotated[float, msgspec.Meta(ge=10.0, le=86_400.0)] = 900.0
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 4
    backoff_s: Annotated[float, msgspec.Meta(ge=0.01, le=600.0)] = 10.0
    backoff_s_max: Annotated[float, msgspec.Meta(ge=0.01, le=3600.0)] = 120.0
    retry_s: Annotated[float, msgspec.Meta(ge=1.0, le=86_400.0)] = 600.0
    history_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3


class OperatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator watches, allows and adds.

    ``namespaces``: whose TrainingRuns are the operator's; empty: of all, which needs a ClusterRole. ``values``: of
    the chart, for every run; those of a TrainingRun go before them, ``forbidden`` ones are refused there and may be
    set here. ``allowed``: keys taken out of ``FORBIDDEN``. ``upgrades``: a run gets the chart of a newer operator
    ``with-changes`` of its spec, or ``at-once``, which restarts every run. ``sync_s`` (seconds): how often everything
    is read. ``deadline_s``: of a request. ``lease_s``: after this long without renewal another instance takes over;
    at least three ``sync_s``. ``restart_s``: how long one service may take to restart before the upgrade counts as
    stuck.
    """

    namespaces: list[str] = []
    values: dict[str, Any] = {}
    allowed: list[str] = []
    upgrades: Literal["with-changes", "at-once"] = "with-changes"
    quota: QuotaConfig = QuotaConfig()
    helm: HelmConfig = HelmConfig()
    sync_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 5.0
    deadline_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 10.0
    lease_s: Annotated[int, msgspec.Meta(ge=1, le=600)] = 20
    restart_s: Annotated[float, msgspec.Meta(ge=1.0, le=86_400.0)] = 3600.0
    telemetry: TelemetryConfig = TelemetryConfig()

    @property
    def forbidden(self) -> tuple[str, ...]:
        """The keys that a TrainingRun may not set."""
        return tuple(key for key in FORBIDDEN if key not in self.allowed)


def read_config(path: Path) -> OperatorConfig:
    """The configuration of a file.

    Raises:
        ConfigError: it cannot be read, or says what the operator does not know.
    """
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=OperatorConfig)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", why=str(error), fix="name a file by --config") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} is no configuration of the operator",
            why=str(error),
            fix="see the keys of OperatorConfig in services/tidegate/operator/config.py",
        ) from error
    unknown = [key for key in config.allowed if key not in FORBIDDEN]
    if unknown:
        raise ConfigError(
            f"`allowed` names {', '.join(unknown)}",
            why="only keys that are refused by default can be allowed",
            fix=f"choose among {', '.join(FORBIDDEN)}",
        )
    if config.lease_s < 3 * config.sync_s:
        raise ConfigError(
            f"lease_s is {config.lease_s} and sync_s {config.sync_s:g}",
            why="the Lease would end between two renewals",
            fix="set lease_s to three times sync_s or more",
        )
    return config
