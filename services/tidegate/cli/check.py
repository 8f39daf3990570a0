"""``tidegate check``: whether a run file can work, before anything of it starts."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from tidegate.cli.console import open_console
from tidegate.cli.env import render as describe_environment
from tidegate.cli.json_output import write_json
from tidegate.cli.option_groups import panel
from tidegate.cli.run_argument import SetOption
from tidegate.core.sizing.accelerators import parse_bytes, parse_gpus
from tidegate.core.sizing.learner_room import LearnerRoom
from tidegate.environment.one_episode import PlayedText
from tidegate.launch.dial import dial_notice
from tidegate.launch.play_check import play_run
from tidegate.launch.play_child import PlayedSegments
from tidegate.launch.run_check import RunReport, check_run
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_plan import RunPlan

_Learner = panel("What the learner will have (default: this machine)")
GpusOption = Annotated[str, _Learner(help="GPUs that train, a process for each: 8xH100-80.")]
PodsOption = Annotated[int, _Learner(help="Pods or machines, which divide them evenly.", min=1)]
MemoryOption = Annotated[str, _Learner(help="Memory of each pod: 104Gi.")]
DiskOption = Annotated[str, _Learner(help="Disk for its checkpoints: 10Gi.")]

DIGEST_CHARS_SHOWN = 12


class CheckAndPlay(msgspec.Struct, frozen=True):
    """The answer of ``check --play --json``."""

    check: RunReport
    played: PlayedSegments | list[PlayedText] | None


def check(
    run: Annotated[Path, typer.Argument(help="Run file.", metavar="RUN")],
    set_: SetOption = None,
    gpus: GpusOption = "",
    pods: PodsOption = 1,
    memory: MemoryOption = "",
    disk: DiskOption = "",
    play: Annotated[
        bool, typer.Option("--play", help="Also play one episode, and print what was seen.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check everything that `tidegate up` refuses before anything starts; start and keep nothing.

    Reads every section and what they need of each other, opens the environment once and builds the policy for it, or
    reads the prompts, and looks at a pretrained model, which must fit the learner. --play plays one episode with random
    actions, or lets the reward judge two answers to one problem. Exits 0, or 2 with the reason on standard error.
    """
    plan = read_run_file(run, set_ or [])
    room = None
    if gpus or memory or disk or pods > 1:
        room = room_of(gpus=gpus, pods=pods, memory=memory, disk=disk, ranks=plan.services["learner"].ranks)
    report = asyncio.run(check_run(plan, room=room))
    played = asyncio.run(play_run(plan)) if play else None
    if json:
        write_json(CheckAndPlay(report, played) if play else report)
        return
    console = open_console()
    console.print(f"{run} can run", soft_wrap=True)
    console.print(render(report, plan))
    if notice := dial_notice(plan):
        console.print(notice, style="yellow", soft_wrap=True)
    if played is not None:
        console.print(played_lines(played), soft_wrap=True)


def played_lines(played: PlayedSegments | list[PlayedText]) -> str:
    """What one episode gave, in words."""
    if isinstance(played, PlayedSegments):
        rewards = ", ".join(f"{each:g}" for each in played.rewards)
        return (
            f"\none episode with random actions\n  first observation  {played.observation}\n"
            f"  return {played.episode_return:g} in {played.num_steps:,} steps and {played.took_s:.2f} s, "
            f"rewards {rewards}\n  end  {played.end}"
        )
    return "".join(map(_text_lines, played))


def _text_lines(played: PlayedText) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in {**played.parts, **played.components}.items())
    turns = "".join(
        f"\n  turn    {text!r}" + (f"\n  reply   {reply!r}" if reply else "") for text, reply in played.turns
    )
    env = f"\nof {played.env}" if played.env else ""
    return (
        f"{env}\nprompt    {played.prompt!r}{turns}\n  reward  {played.reward:g} ({parts}), {played.end}, "
        f"{played.took_s:.2f} s\n"
    )


def room_of(*, gpus: str, pods: int, memory: str, disk: str, ranks: int) -> LearnerRoom:
    """The options as a room. ``ranks``: of the run file, for a learner without GPUs.

    Raises:
        ConfigError: an option cannot be read.
    """
    given = parse_gpus(gpus) if gpus else None
    return LearnerRoom(
        ranks=max(pods, ranks) if given is None else given.count,
        pods=pods,
        kind=None if given is None else given.kind,
        memory_bytes=parse_bytes(memory) if memory else None,
        disk_bytes=parse_bytes(disk) if disk else None,
    )


def render(report: RunReport, plan: RunPlan) -> Table:
    """The report in words, a row a fact."""
    if report.environment is not None:
        table = describe_environment(report.environment, plan.file.policy)
    else:
        table = Table.grid(padding=(0, 2))
        workload = plan.file.workload
        total = sum(workload.weights().values())
        for name, weight in workload.weights().items():
            path = workload.by_name()[name].dataset.path
            drawn = f", {weight / total:.1%} of them" if weight else ", evaluated only"
            share = drawn if workload.envs else ""
            table.add_row("prompts", f"{f'{path} for {name}' if path and share else path or name}{share}")
        table.add_row("policy", report.policy)
    if report.model is not None:
        model = report.model
        table.add_row("model", f"{model.architecture}, {model.size_bytes / 1e9:,.1f} GB in {model.folder}")
    if report.warmup is not None:
        found = report.warmup
        table.add_row(
            "warm-up",
            f"{found.pairs:,} demonstrations, {found.tokens:,} tokens with a loss, the longest {found.longest:,} of "
            f"{plan.file.policy.context_length:,} with its prompt",
        )
    for setting, record in report.own_code.items():
        files = ", ".join(f"{name} {digest[:DIGEST_CHARS_SHOWN]}" for name, digest in record.files.items())
        table.add_row(setting, f"{record.name} ({files or 'of an installed package'})")
    table.add_row("target", report.target or "none")
    return table
