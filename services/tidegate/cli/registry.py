"""The literal table of the command line's commands.

A new command is a file and one line in ``COMMANDS``. Its module is imported only when it runs, so that
``tidegate --help`` answers at once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: ``target`` is ``module:function`` (a function typed for typer), ``summary`` its line in the help."""

    target: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "up": CommandEntry(
        "tidegate.cli.up.command:up", "Start everything a run file asks for and train to its target."
    ),
    "serve": CommandEntry(
        "tidegate.launch.serve:serve", "Run one service of a run folder in the foreground."
    ),
    "status": CommandEntry("tidegate.cli.status:status", "Watch a running platform."),
    "audit": CommandEntry(
        "tidegate.cli.audit:audit", "Hold the books against each other: every trajectory, once."
    ),
    "explain": CommandEntry(
        "tidegate.cli.explain:explain", "Who is the bottleneck; why a trajectory was dropped."
    ),
    "slo": CommandEntry(
        "tidegate.cli.slo:slo", "How the run's objectives stand: budgets, burn rates, last breaches."
    ),
    "trace": CommandEntry("tidegate.cli.trace:trace", "The life of one trajectory, stage by stage."),
    "report": CommandEntry(
        "tidegate.cli.report.command:report", "Write the report of a run as one HTML file."
    ),
    "export": CommandEntry(
        "tidegate.cli.export.command:export", "Write a run's trajectories to a Parquet file, for analysis."
    ),
    "await": CommandEntry(
        "tidegate.cli.await_run:await_run",
        "Wait until a running platform is ready, trains, or reaches a target.",
    ),
    "plan": CommandEntry(
        "tidegate.cli.plan.command:plan", "Who would bind, what it would cost, and whether asynchrony pays."
    ),
    "sim": CommandEntry(
        "tidegate.cli.sim.command:sim", "Simulate a fleet of any size, or the services under faults."
    ),
    "throttle": CommandEntry(
        "tidegate.cli.throttle:throttle",
        "Slow down one service of a local run for a while, to rehearse alerts.",
    ),
    "credentials": CommandEntry(
        "tidegate.cli.credentials:credentials",
        "Fill a Secret with the broker's passwords, inside of a cluster.",
    ),
    "model": CommandEntry(
        "tidegate.cli.model:model", "The folder of a pretrained model, made if need be, and its digest."
    ),
}
