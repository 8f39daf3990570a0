"""``tidegate doctor``: whether this machine, or pod, is what a run on GPUs needs."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from tidegate.cli.console import open_console
from tidegate.cli.doctor.smoke import SIZES, examine_smoke
from tidegate.cli.json_output import write_json
from tidegate.core import doctor as checks
from tidegate.core.doctor import MachineFinding
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.launch import machine_probes as probes

# The rendezvous of torch.distributed where nothing else is set.
MASTER_PORT = 29500
SIGNS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "skip": ("-", "dim")}


class DoctorReport(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

    healthy: bool
    findings: list[MachineFinding]


def doctor(
    run: Annotated[Path | None, typer.Argument(help="Run file that is to run here.", metavar="[RUN]")] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="GPUs expected here (default: 1 where TIDEGATE_DEVICE is cuda, else 0).", min=0),
    ] = None,
    volume: Annotated[
        list[Path] | None, typer.Option(help="Folder to write 64 MB to, and remove; repeatable.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="host:port of a service that must answer; repeatable.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a pretrained model.")] = None,
    digest: Annotated[str, typer.Option(help="Digest that the model must have.")] = "",
    port: Annotated[int | None, typer.Option(help="Port at which ranks meet.", min=1, max=65535)] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Then train: 20 versions of a model made from nothing, with kills and a pause.",
        ),
    ] = False,
    size: Annotated[
        str, typer.Option(help="Model of --smoke: 0.5b or tiny (default: 0.5b on GPUs, else tiny).")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder of --smoke, with its logs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at driver, GPUs, shared memory, network, volumes, model and vLLM; train nothing without --smoke.

    Every line passes, is skipped with its reason, or fails with its fix. Exits 0, or 1 if a line failed.
    """
    if size not in {"", *SIZES}:
        raise ConfigError(f"There is no size {size!r}", fix=f"use {' or '.join(SIZES)}")
    if (size or keep) and not smoke:
        raise ConfigError("--size and --keep are of --smoke", fix="add --smoke, or remove them")
    in_pod = 1 if os.environ.get("TIDEGATE_DEVICE") == "cuda" else 0
    facts = probes.probe_gpus()
    findings = examine(
        facts,
        run=run,
        wanted_gpus=in_pod if gpus is None else gpus,
        volumes=volume or [],
        peers=peer or [],
        model=model,
        digest=digest,
        port=port or int(os.environ.get("MASTER_PORT", MASTER_PORT)),
    )
    if smoke:
        findings += examine_smoke(
            facts, size_name=size or ("0.5b" if facts.devices else "tiny"), keep=keep, say=_say
        )
    report = DoctorReport(not checks.has_failed(findings), findings)
    if json:
        write_json(report)
    else:
        open_console().print(render(findings))
    raise typer.Exit(0 if report.healthy else 1)


def examine(
    gpus: checks.GpuFacts,
    *,
    run: Path | None,
    wanted_gpus: int,
    volumes: list[Path],
    peers: list[str],
    model: Path | None,
    digest: str,
    port: int,
) -> list[MachineFinding]:
    """Every other probe, and all checks, in the order in which faults explain one another."""
    rdma = probes.probe_rdma()
    found_digest, problem = probes.probe_model(model)
    return [
        *checks.gpu_findings(gpus, wanted_gpus=wanted_gpus),
        checks.check_shared_memory(probes.probe_shared_memory(), wanted_gpus=wanted_gpus),
        checks.check_rdma(rdma),
        checks.check_memlock(rdma),
        checks.check_port(port, problem=probes.probe_port(port)),
        *(checks.check_volume(probes.probe_volume(folder)) for folder in volumes),
        *asyncio.run(_check_peers(peers)),
        checks.check_model(found_digest, expected=digest, problem=problem),
        checks.check_vllm(probes.probe_vllm()),
        checks.check_plan("" if run is None else str(run), problem=_plan_problem(run)),
    ]


def _say(line: str) -> None:
    """Progress, beside the report."""
    sys.stderr.write(f"tidegate: {line}\n")
    sys.stderr.flush()


async def _check_peers(addresses: list[str]) -> list[MachineFinding]:
    problems = await asyncio.gather(*map(probes.probe_address, addresses))
    return [
        checks.check_address(address, problem=problem)
        for address, problem in zip(addresses, problems, strict=True)
    ]


def _plan_problem(run: Path | None) -> str:
    if run is None:
        return ""
    from tidegate.launch.run_check import check_run
    from tidegate.launch.run_file import read_run_file

    try:
        asyncio.run(check_run(read_run_file(run, []), room=None))
    except TidegateError as error:
        return str(error)
    return ""


def render(findings: list[MachineFinding]) -> Table:
    """A line a check; the fix below what failed."""
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        sign, style = SIGNS[finding.outcome]
        table.add_row(Text(sign, style=style), finding.check, finding.found)
        if finding.fix:
            table.add_row("", "", f"fix: {finding.fix}")
    return table
