"""``tidegate serve``: one service of a run, in this process, in the foreground.

The supervisor starts it for every instance; a user may start it by hand to debug one. It reads ``run.json`` and needs
only the folder. In a pod it reads the mounted files instead (``--cluster``), keeps its own in ``--data-dir``, and is
named after the pod where a service has several instances.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.launch.cluster import (
    BROKER_WAIT_S,
    JOB_VARIABLE,
    LISTEN,
    POD_NAME_VARIABLE,
    RUN_FILE,
    TASK_SECRET_VARIABLE,
    password_path,
    pod_index,
)
from tidegate.launch.fork_server.kinds import LEARNER
from tidegate.launch.guarded import guard_by_supervisor
from tidegate.launch.local_ranks import num_ranks_of, run_ranks
from tidegate.launch.log_lines import log_json_lines, log_plain_lines
from tidegate.launch.operator_credential import pod_credentials
from tidegate.launch.preparation import prepare_pod
from tidegate.launch.run_file_source import RunFileSource
from tidegate.launch.run_folder import RUN_JSON, read_record, settings_of
from tidegate.launch.run_parsing import parse_plan, parse_section, parse_shared
from tidegate.launch.run_target import target_of
from tidegate.launch.services import SERVICES
from tidegate.learner.ranks.membership import membership, pod_ranks
from tidegate.runtime import exit_codes
from tidegate.runtime.config import Settings
from tidegate.runtime.files import PRIVATE_UMASK
from tidegate.runtime.instances import REPLICATED
from tidegate.runtime.loading import load
from tidegate.runtime.own_code.loading import make_importable
from tidegate.runtime.own_cores import use_own_cores
from tidegate.runtime.termination_message import write_termination_message
from tidegate.wire.permissions import user_of


def main(arguments: list[str]) -> int:
    """Parse the arguments of ``serve`` and run the service; returns the exit code."""
    guard_by_supervisor()
    use_own_cores()
    parser = argument_parser()
    chosen = parser.parse_args(arguments)
    if (chosen.cluster is None) != (chosen.data_dir is None):
        parser.error("--cluster and --data-dir go together")
    try:
        if chosen.cluster is not None:
            code = serve_pod(chosen.service, cluster=chosen.cluster, data_dir=chosen.data_dir)
            return code_of_pod(code, os.environ)
        return serve(chosen.service, run_dir=chosen.run_dir, index=chosen.index)
    except TidegateError as error:
        sys.stderr.write(f"tidegate serve {chosen.service}: {error}\n")
        write_termination_message(str(error))
        return exit_codes.FAILED if error.retryable else exit_codes.BAD_INPUT


def argument_parser() -> argparse.ArgumentParser:
    """The arguments of ``tidegate serve``. No typer, which a service process is not to carry."""
    parser = argparse.ArgumentParser(prog="tidegate serve", description="Run one service of a run folder.")
    parser.add_argument("service", choices=list(SERVICES), metavar="SERVICE", help=", ".join(SERVICES))
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--run-dir", type=Path, metavar="DIR", help="run folder of `tidegate up`")
    place.add_argument("--cluster", type=Path, metavar="DIR", help="folder with run.yaml and cluster.yaml")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="with --cluster: folder for the files of this service"
    )
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index of the instance, from 0")
    return parser


def serve(service: str, *, run_dir: Path, index: int) -> int:
    """Run one instance of a service until it is stopped; returns the exit code.

    Raises:
        TidegateError: the folder is no run folder, or the run has no such instance.
    """
    sections = RunFileSource(run_dir, user=user_of(service))
    record = read_record(run_dir, user=user_of(service))
    source = str(run_dir / RUN_JSON)
    file = parse_shared(record.run_file, source=source)
    # Its own section only: another service's config may load what that service needs to compute.
    config, _ = parse_section(record.run_file, service, source=source)
    num_instances = len(record.addresses.get(service, []))
    if not 0 <= index < num_instances:
        raise ConfigError(
            f"This run has {num_instances} {service} and no number {index}",
            fix=f"raise {service}.replicas in the run file"
            if service in REPLICATED
            else "leave --index out, or start a service that the run has",
        )
    log_plain_lines()
    os.umask(PRIVATE_UMASK)
    settings = settings_of(run_dir, record, file)
    num_ranks = num_ranks_of(service, config)
    if num_ranks == 1 or membership(os.environ) is not None:
        return _run(service, config, settings, index=index, sections=sections)
    return run_ranks(
        num_ranks,
        partial(_run, service, config, settings, index=index, sections=sections),
        folder=run_dir / service,
        drain_timeout_s=settings.drain_timeout_s,
    )


def serve_pod(service: str, *, cluster: Path, data_dir: Path) -> int:
    """Run the instance of a service that this pod is; returns the exit code.

    A learner's pod of several GPUs starts a rank for each of them.

    Raises:
        TidegateError: the files of the cluster do not describe a run, or one that cannot work.
    """
    sections = RunFileSource(cluster, user=user_of(service))
    record = read_record(cluster)
    source = str(cluster / RUN_FILE)
    # The whole plan: no `tidegate up` has checked it. Other sections cost some 10 ms and a megabyte.
    plan = parse_plan(record.run_file, source=source)
    target_of(plan)
    settings = msgspec.structs.replace(
        settings_of(data_dir, record, plan.file),
        broker_wait_s=BROKER_WAIT_S,
        broker_password_path=password_path(),
        task_secret_path=os.environ.get(TASK_SECRET_VARIABLE, ""),
        credentials_dir=str(pod_credentials()),
        listen=LISTEN,
        until=plan.file.until,
        instance=os.environ.get(POD_NAME_VARIABLE, "") if service in REPLICATED else "",
    )
    log_json_lines(service=service, instance=settings.instance or service, run=settings.run)
    prepare_pod(service, plan, data_dir=data_dir)
    index = pod_index() if service in REPLICATED else 0
    ranks = pod_ranks(os.environ) if service == LEARNER else None
    if ranks is None:
        return _run(service, plan.services[service], settings, index=index, sections=sections)
    return run_ranks(
        ranks.in_pod,
        partial(_run, service, plan.services[service], settings, index=index, sections=sections),
        # Not on the volume: the file is of this life of the pod, and a network's file system may lack its locks.
        folder=Path(tempfile.gettempdir()) / "tidegate-ranks",
        drain_timeout_s=settings.drain_timeout_s,
        pod=ranks if ranks.count > ranks.in_pod else None,
    )


def code_of_pod(code: int, environ: Mapping[str, str]) -> int:
    """What a pod's process ends with. A pod that is evicted or deleted drains, and its Job has to make another one.

    Only a complete run, of which admission tells the learner, finishes the Job.
    """
    if code == exit_codes.COMPLETED:
        return 0
    return exit_codes.TERMINATED if code == exit_codes.DRAINED and environ.get(JOB_VARIABLE) else code


def _run(service: str, config: object, settings: Settings, *, index: int, sections: RunFileSource) -> int:
    if settings.workload.kind == "segments":
        make_importable(settings.files_dir)  # a module that registers an environment
    # Heavy modules load only here, after the settings were checked. Their definitions stay for good, so collecting
    # garbage while they load is wasted.
    gc.disable()
    run_service = load("tidegate.runtime.process:run_service")
    spec = load(f"{SERVICES[service].package}.main:SPEC")
    gc.enable()
    return run_service(spec, config, settings, index=index, sections=sections)
