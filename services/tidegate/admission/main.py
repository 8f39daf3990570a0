"""The entry point of admission: builds its parts before its loops run."""

import os
from pathlib import Path

from tidegate.admission.broker_watch import BrokerWatch
from tidegate.admission.completion import RunCompletion
from tidegate.admission.config import AdmissionConfig
from tidegate.admission.external_scaler import ExternalScaler
from tidegate.admission.kept_events import KeptEvents
from tidegate.admission.kept_files import PAUSE_FILE, KeptFiles
from tidegate.admission.kubernetes.access import access_from
from tidegate.admission.kubernetes.main import open_cluster
from tidegate.admission.kubernetes.standby import turn
from tidegate.admission.limits_subject import LimitsSubject
from tidegate.admission.loops import Admission
from tidegate.admission.samples import FILE_NAME
from tidegate.admission.scaling import Scaling
from tidegate.admission.servicer import AdmissionServicer, ExternalScalerServicer
from tidegate.admission.slo_watch import SloWatch
from tidegate.admission.snapshot import add_lines
from tidegate.admission.staleness_controller import StalenessController
from tidegate.admission.state_file import StateFile
from tidegate.core.pauses import Pause
from tidegate.runtime.json_lines_file import JsonLinesFile
from tidegate.runtime.live_settings import run_file_limits
from tidegate.runtime.process_random import GENERATOR
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.settings_loop import SettingsFollower
from tidegate.runtime.snapshots.servicer import RecordsServicer


async def build(context: ServiceContext, config: AdmissionConfig) -> ServiceParts:
    """Assemble the loops; nothing is decided before the first tick."""
    settings, live = context.settings, context.live
    access = access_from(os.environ)
    subject = LimitsSubject(
        context,
        writer=f"{access.identity}-{GENERATOR.getrandbits(64):016x}" if access and access.pods else "",
        deadline_s=config.limits_refresh_s,
    )
    # First: what an earlier leader publishes after it is refused, and what it published before is restored.
    await subject.take_over()
    kept = KeptFiles(context, subject)
    await kept.restore()
    live.follow_all(scaling=config.scaling, until=settings.until)
    follower = SettingsFollower(context, tells=True)
    await follower.look()  # a pod may have stood by for days
    workload = settings.workload
    admission = Admission(
        context,
        config,
        run_file=run_file_limits(settings, live.staleness),
        group_size=workload.num_samples if workload.kind == "text" else 1,
        pause_file=StateFile(context.data_dir / PAUSE_FILE, Pause()),
        kept=kept,
        samples=JsonLinesFile(
            context.data_dir / FILE_NAME,
            bytes_max=config.samples_file_bytes_max,
            files_kept=config.samples_files_kept,
        ),
        slos=SloWatch(context),
        staleness=StalenessController(
            settings.response,
            max_lag=live.staleness.max_lag,
            batch_size=settings.batch_size,
            now_s=context.clock.monotonic_s(),
        ),
        scaling=Scaling(live.sections.scaling or config.scaling),
        completion=RunCompletion(context),
        subject=subject,
    )

    def change() -> None:
        admission.change_run_file(run_file_limits(settings, live.staleness))
        admission.scaling.change(live.sections.scaling or config.scaling)

    live.on_change(change)
    loops: dict[str, Loop] = {
        "observe": admission.observe,
        "tick": admission.tick,
        "settings": follower.follow,
    }
    cluster = await open_cluster(context, admission, config.kubernetes, access)
    if cluster is not None:
        loops["kubernetes"] = cluster[0].run

    if settings.listen:
        loops["events"] = KeptEvents(context).follow

    records = RecordsServicer(add_lines, folder=Path(settings.data_dir), staging_in=context.data_dir)

    async def close() -> None:
        await admission.close()
        await kept.publish()
        if cluster is not None:
            loop, api = cluster
            await loop.close()
            await api.close()

    return ServiceParts(
        loops={**loops, "broker": BrokerWatch(context).run},
        servicers=[
            AdmissionServicer(admission).registration(),
            ExternalScalerServicer(ExternalScaler(admission.scaling)).registration(),
            records.registration(),
        ],
        close=close,
    )


SPEC = ServiceSpec(name="admission", config_type=AdmissionConfig, build=build, turn=turn)
