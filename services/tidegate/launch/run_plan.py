"""The typed run file: one document for the whole platform, the same on a laptop and in a cluster.

Sections that several services read are ``runtime.config``; a service's own section is its package's config.
``run_parsing`` makes these values from a document.
"""

from typing import Annotated, Any

import msgspec

from tidegate.core.admission import Limits
from tidegate.core.prices import Prices
from tidegate.core.slo_catalogue import SlosConfig
from tidegate.runtime.companion_settings import BackupConfig, CallbackConfig, NotifyConfig, TrackConfig
from tidegate.runtime.config import (
    LongTailConfig,
    PolicyConfig,
    Positive,
    PositiveSeconds,
    ResponseConfig,
    StalenessConfig,
    TelemetryConfig,
    WorkloadConfig,
)
from tidegate.runtime.instances import REPLICATED
from tidegate.runtime.live_settings import limits_of
from tidegate.runtime.replication.config import PostgresConfig

# The run id is this name, a dash and a suffix, and names streams: 48 characters at most.
RunName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
        description="of 1-40 lower-case letters, digits and inner dashes",
    ),
]
REPLICAS_MAX = 256
CoreNumbers = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, le=8191)], ...], msgspec.Meta(min_length=1, max_length=8192)
]


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the whole platform shares.

    ``run``: a name; the run id is this name and a suffix. ``batch_size``: trajectories a learner step, in whole
    groups. ``max_running``: trajectories between admission and the store (C), at least a group; 0 is what
    ``staleness.max_lag`` needs, ``(max_lag + 1) * batch_size``, and follows it. Replay wants a number.
    ``until``: the target of the run, as for ``--until``; empty runs until stopped. ``drain_timeout_s``: seconds a
    service has to finish what it holds. ``broker_port``: 0 takes a free one. ``pass_env``: environment variables of
    your shell that all processes of `tidegate up` inherit, besides those that programs and libraries read and those
    that a service's own section names (a judge's key). ``cores``: numbers of the processor cores that processes of
    `tidegate up` may use, by service; ``others``: all that are not named, and the broker. Empty: every core. On Linux
    only; in a cluster the kubelet assigns cores. ``files_dir``: the folder of the files that a run file names (own
    code, datasets); relative to the run file, whose own folder it is by default. ``begin_from``: the folder of
    another run, whose newest policy this run's first version is, with a new optimiser; ``FOLDER@best`` and
    ``FOLDER@0-3fa2@40`` name a version. Relative to the run file, or to where the run is started.
    ``track``: experiment trackers that `tidegate up` runs beside it; ``notify``: a webhook that it posts to;
    ``callbacks``: own code that is told of updates, evaluations, checkpoints and the end. In a cluster nothing reads
    these three: the run's files are in several pods, and Alertmanager sends notices. ``backup``: where `tidegate up`,
    and in a cluster a container beside admission, copies the run. ``postgres``: where task queue and trajectory store
    replicate their files.
    """

    run: RunName
    workload: WorkloadConfig
    policy: PolicyConfig
    batch_size: Positive
    max_running: Annotated[int, msgspec.Meta(ge=0)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    staleness: StalenessConfig = StalenessConfig()
    response: ResponseConfig = ResponseConfig()
    slos: SlosConfig = SlosConfig()
    long_tail: LongTailConfig = LongTailConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    prices: Prices = Prices()
    track: Annotated[tuple[TrackConfig, ...], msgspec.Meta(max_length=8)] = ()
    notify: NotifyConfig | None = None
    callbacks: Annotated[tuple[CallbackConfig, ...], msgspec.Meta(max_length=8)] = ()
    backup: BackupConfig | None = None
    postgres: PostgresConfig | None = None
    until: str = ""
    drain_timeout_s: PositiveSeconds = 10.0
    broker_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    pass_env: tuple[str, ...] = ()
    cores: Annotated[dict[str, CoreNumbers], msgspec.Meta(max_length=64)] = {}
    files_dir: str = ""
    begin_from: str = ""

    def limits(self) -> Limits:
        """The limits on admission at the start of the run."""
        return limits_of(self.staleness, batch_size=self.batch_size, max_running=self.max_running)


class RunPlan(msgspec.Struct, frozen=True):
    """A consistent run file: the shared part, each service's section, and its number of instances.

    A service that only other runs need has a section of defaults and 0 instances.
    """

    file: RunFile
    services: dict[str, Any]
    replicas: dict[str, int]

    def document(self) -> dict[str, Any]:
        """The run file again, with every default written out; reading it back gives the same plan."""
        document = _as_read_from_json(self.file)
        for service, config in self.services.items():
            section = _as_read_from_json(config)
            if service in REPLICATED:
                section["replicas"] = self.replicas[service]
            document[service] = section
        return document


def parts_of(plan: RunPlan) -> dict[str, RunPlan]:
    """The plan of each environment as if the run had it alone, by the environment's name."""
    return {
        name: msgspec.structs.replace(plan, file=msgspec.structs.replace(plan.file, workload=workload))
        for name, workload in plan.file.workload.by_name().items()
    }


def _as_read_from_json(value: msgspec.Struct) -> dict[str, Any]:
    """With lists where a Struct has tuples, so that it compares equal to the content of a file."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
