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
        "tidegate.cli.up.command:up", "Start the platform of a run file and train to its target."
    ),
    "check": CommandEntry(
        "tidegate.cli.check:check", "Check that a run file can work, before anything of it starts."
    ),
    "chart": CommandEntry(
        "tidegate.cli.chart:chart",
        "Write a run file, and the files that it names, as values of the Helm chart.",
    ),
    "new": CommandEntry(
        "tidegate.cli.new:new",
        "Write a folder with a task, an environment, an objective or an agent of your own, which trains as it is.",
    ),
    "doctor": CommandEntry(
        "tidegate.cli.doctor.command:doctor", "Look whether this machine or pod is what a run on GPUs needs."
    ),
    "fork": CommandEntry(
        "tidegate.cli.fork:fork", "Start a new run from a checkpoint of another, with other settings."
    ),
    "compare": CommandEntry(
        "tidegate.cli.compare.command:compare",
        "Train run files with several seeds each and compare their learning curves.",
    ),
    "policy": CommandEntry(
        "tidegate.cli.policy.command:policy",
        "Write a version of a run's policy to an ONNX or safetensors file.",
    ),
    "evaluate": CommandEntry(
        "tidegate.cli.evaluate.command:evaluate",
        "Let a version of a language model answer held-out problems: greedily, sampled, pass@k.",
    ),
    "play": CommandEntry(
        "tidegate.cli.policy.play_command:play",
        "Play a version of a run's policy and print its returns, or film it.",
    ),
    "serve": CommandEntry(
        "tidegate.launch.serve:serve", "Run one service of a run folder in the foreground."
    ),
    "env": CommandEntry("tidegate.cli.env:env", "Describe an environment, and check that a policy fits it."),
    "status": CommandEntry("tidegate.cli.status:status", "Watch a running platform."),
    "pause": CommandEntry(
        "tidegate.cli.pause:pause", "Stop the admission of tasks; what is in flight is still trained."
    ),
    "resume": CommandEntry("tidegate.cli.pause:resume", "End the pause of `tidegate pause`."),
    "rollback": CommandEntry(
        "tidegate.cli.rollback:rollback",
        "Send a running platform back to a kept checkpoint; what was trained after it no longer counts.",
    ),
    "set": CommandEntry(
        "tidegate.cli.settings:change",
        "Change the staleness budget, objectives or scaling of a running platform.",
    ),
    "audit": CommandEntry(
        "tidegate.cli.audit:audit", "Reconcile the admission journal with the trajectory ledger."
    ),
    "replay": CommandEntry(
        "tidegate.cli.replay.command:replay",
        "Recompute the updates up to a version, and compare them bit for bit with the run's own.",
    ),
    "explain": CommandEntry(
        "tidegate.cli.explain:explain", "Name the bottleneck and its fix, or why a trajectory was dropped."
    ),
    "slo": CommandEntry(
        "tidegate.cli.slo:slo", "Report the objectives: error budgets, burn rates, last breaches."
    ),
    "trace": CommandEntry("tidegate.cli.trace:trace", "Print the stages of one trajectory with their times."),
    "runs": CommandEntry(
        "tidegate.cli.runs:runs", "List the runs below a folder, and remove old ones (--prune)."
    ),
    "receipt": CommandEntry(
        "tidegate.cli.receipt:receipt", "Print what a run trained, took, cost and wasted, by reason."
    ),
    "track": CommandEntry(
        "tidegate.cli.track.command:track",
        "Write a run's curves for an experiment tracker: TensorBoard, MLflow, W&B, Trackio.",
    ),
    "backup": CommandEntry(
        "tidegate.cli.backup.command:backup",
        "Copy a run to object storage or a folder, so that an empty machine can go on.",
    ),
    "restore": CommandEntry(
        "tidegate.cli.backup.restore_command:restore", "Fill a run folder from a backup, or list the backups."
    ),
    "backup-pods": CommandEntry(
        "tidegate.cli.backup.pods_command:backup_pods", "Make the backups of a run in a cluster."
    ),
    "call-back": CommandEntry(
        "tidegate.cli.callbacks.pod_command:call_back", "Call a callback of a run in a cluster."
    ),
    "restore-volume": CommandEntry(
        "tidegate.cli.backup.volume_command:restore_volume",
        "Fill a pod's volume from a backup, before its service starts.",
    ),
    "ui": CommandEntry(
        "tidegate.cli.ui.command:ui", "Serve a page over live and ended runs: curves, lag, every trajectory."
    ),
    "report": CommandEntry(
        "tidegate.cli.report.command:report", "Write the report of a run as one HTML file."
    ),
    "samples": CommandEntry(
        "tidegate.cli.version_samples:samples",
        "Print completions of versions with the parts of their rewards.",
    ),
    "export": CommandEntry(
        "tidegate.cli.export.command:export", "Export the trajectories of a run to a Parquet file."
    ),
    "await": CommandEntry(
        "tidegate.cli.await_run:await_run",
        "Wait until a platform is ready, trains, reaches a target, or is complete.",
    ),
    "plan": CommandEntry(
        "tidegate.cli.plan.command:plan", "Predict bottleneck, cost and speed-up of a configuration."
    ),
    "sim": CommandEntry(
        "tidegate.cli.sim.command:sim", "Simulate the services under faults, or a fleet of any size."
    ),
    "throttle": CommandEntry(
        "tidegate.cli.throttle:throttle",
        "Slow down one service of a local run for a limited time.",
    ),
    "credentials": CommandEntry(
        "tidegate.cli.credentials:credentials",
        "Create the broker's passwords and the tokens of calls in Kubernetes Secrets.",
    ),
    "certificates": CommandEntry(
        "tidegate.cli.certificates.command:certificates",
        "Issue the certificates of a release, and renew them before they expire.",
    ),
    "streams": CommandEntry(
        "tidegate.cli.streams:streams", "Create or update the streams of a run in a cluster."
    ),
    "operator": CommandEntry(
        "tidegate.cli.operator:operator",
        "Make the release of each TrainingRun that has a run file (chart tidegate-operator).",
    ),
    "model": CommandEntry(
        "tidegate.cli.model:model", "Print the folder and the digest of a pretrained model."
    ),
}
