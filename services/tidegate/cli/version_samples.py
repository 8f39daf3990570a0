"""``tidegate samples``: completions of versions with their rewards."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tidegate.cli.accounting import ledger_path
from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.up.history import read_steps
from tidegate.core.errors import NotFoundError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.launch.named_version import version_of
from tidegate.launch.run_folder import find_folder
from tidegate.trajectory_store.version_samples import ShownCompletion, samples_of

# Of a prompt or a completion that is shown; the whole is in `tidegate export` and in `--json`.
CHARACTERS_MAX = 2000


class VersionSamples(msgspec.Struct, frozen=True):
    """The samples of one version."""

    version: PolicyVersion
    samples: Sequence[ShownCompletion]


def samples(
    run: RunArgument = None,
    folder: RunOption = None,
    version: Annotated[
        str, typer.Option("--version", help="Of this version only, such as 0-3fa2@40.", metavar="VERSION")
    ] = "",
    last: Annotated[
        int, typer.Option("--last", help="How many of the newest versions.", min=1, max=1000)
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a sample.")] = False,
) -> None:
    """Print the best, the worst and a random completion of versions, with the parts of their rewards."""
    found = find_folder(named_run(run, folder))
    chosen = version_of(version) if version else None
    wanted = [chosen] if chosen is not None else versions_of(read_steps(found))[-last:]
    shown = read_samples_of(found, wanted)
    if not shown:
        raise NotFoundError(
            f"{found} holds no completions of {version or 'its newest versions'}",
            why="the run trains segments, nothing was trained yet, or the rows were folded",
            fix="choose another version, or use `tidegate play` for the policies of environments",
        )
    if json:
        for each in shown:
            for sample in each.samples:
                sys.stdout.write(msgspec.json.encode(as_document(each.version, sample)).decode() + "\n")
        return
    open_console().print(Group(*(_render(each) for each in shown)))


def versions_of(steps: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> list[PolicyVersion]:
    """The versions that the learner made, in order."""
    return [PolicyVersion(lineage=LineageName(step["lineage"]), step=int(step["step"])) for step in steps]


def read_samples_of(folder: Path, versions: Sequence[PolicyVersion]) -> list[VersionSamples]:
    """The samples of each version that has some.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    read = [VersionSamples(version, samples_of(ledger_path(folder), version)) for version in versions]
    return [each for each in read if each.samples]


def as_document(version: PolicyVersion, sample: ShownCompletion) -> dict[str, Any]:
    """A sample as a JSON object, with whole texts."""
    record = sample.record
    return {
        "version": str(version),
        "why": sample.why,
        "trajectory_id": record.trajectory_id,
        "prompt": record.prompt,
        "completion": record.completion,
        "answer": record.answer,
        "reward": record.reward,
        "reward_components": record.reward_components,
        "verifier_log": record.verifier_log,
        "tokens": record.length_tokens,
        "finish_reason": record.finish_reason,
        "lag": sample.lag,
        "written_by": [str(span.version) for span in record.spans],
    }


def facts(sample: ShownCompletion) -> str:
    """Reward, its parts, length, lag and the versions that wrote it, in one line."""
    record = sample.record
    parts = [f"reward {record.reward:g}"]
    parts += [f"{name} {value:g}" for name, value in record.reward_components.items()]
    parts.append(f"{record.length_tokens} tokens")
    parts += [record.finish_reason] if record.finish_reason else []
    parts.append(f"lag {sample.lag}")
    written_by = list(dict.fromkeys(str(span.version) for span in record.spans))
    parts.append(f"by {' to '.join(written_by[:1] + written_by[1:][-1:])}")
    return " · ".join(parts)


def shortened(text: str) -> str:
    """At most ``CHARACTERS_MAX`` of a text, from its two ends."""
    left_out = len(text) - CHARACTERS_MAX
    if left_out <= 0:
        return text
    tail = CHARACTERS_MAX // 4
    return f"{text[: CHARACTERS_MAX - tail]} [… {left_out:,} characters left out …] {text[-tail:]}"


def printable(text: str) -> str:
    """A text for a terminal: characters that would control it, such as escape sequences, are spelt out."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


def _render(shown: VersionSamples) -> RenderableType:
    parts: list[RenderableType] = [Rule(str(shown.version), style="bright_black")]
    for sample in shown.samples:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bright_black", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row(sample.why, Text(printable(facts(sample)), style="bold"))
        table.add_row("prompt", Text(printable(shortened(sample.record.prompt))))
        table.add_row("completion", Text(printable(shortened(sample.record.completion))))
        if sample.record.verifier_log:
            table.add_row("verifier", Text(printable(shortened(sample.record.verifier_log))))
        parts += [table, Text()]
    return Group(*parts)
