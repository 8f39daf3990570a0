"""``tidegate chart``: a run file and the files that it names, as values of the chart."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from tidegate.cli.run_argument import SetOption
from tidegate.core.errors import ConfigError
from tidegate.launch.carried_files import CarriedFile, carried, files_of
from tidegate.launch.run_file import read_document, read_run_file


def chart(
    run: Annotated[Path, typer.Argument(help="Run file.", metavar="RUN")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write (default: standard output).")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Write a run file as values of the Helm chart, with the files that it names: own code and prompts.

    `helm install NAME helm/tidegate -f values.yaml` makes a ConfigMap of the files, which the pods that use them mount
    read-only and hold against their digests. Together at most 1 MB, and 160 kB compressed; more needs a volume.
    """
    document, plan = read_document(run, set_ or []), read_run_file(run, set_ or [])
    check_for_pods(document, source=run)
    files = carried(files_of(plan))
    text = values_of(document, files)
    if output is None:
        sys.stdout.write(text)
        return
    output.write_text(text, encoding="utf-8")
    names = ", ".join(each.path for each in files) or "none"
    sys.stdout.write(f"{output}: the values of {run}, with the files: {names}\n")


def values_of(document: dict[str, Any], files: list[CarriedFile]) -> str:
    """The values as YAML. ``document``: of the run file, whose ``files_dir`` the chart sets where there are files."""
    values: dict[str, Any] = {"run": document}
    if files:
        values["run"] = {key: value for key, value in document.items() if key != "files_dir"}
        values["files"] = {"contents": [msgspec.to_builtins(each) for each in files]}
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def check_for_pods(document: dict[str, Any], *, source: Path) -> None:
    """Refuse what pods would not follow, as helm does.

    Raises:
        ConfigError: the run file has a section of ``tidegate up`` on one machine.
    """
    if document.get("notify"):
        raise ConfigError(
            f"{source} has notify, which no pod follows",
            why="it is of `tidegate up` on one machine, and helm refuses the values",
            fix="leave it out with --set notify=null, and use the alert rules with your Alertmanager (rules.enabled)",
        )


class _Dumper(yaml.SafeDumper):
    """With texts of several lines as such; where YAML has no such form of a text it takes the quoted one."""


def _text(_dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
