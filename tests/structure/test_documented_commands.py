"""The commands of the documents: options, arguments, targets, settings, values and files that they name exist.

What needs helm to be seen is in tests/chart/test_documented_commands.py.
"""

import contextlib
import functools
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from benchmarks.command import bench
from benchmarks.registry import BENCHES
from tests.support.documented_commands import PAGES, ROOT, DocumentedCommand, commands_in, commands_of
from tidegate.cli.app import build
from tidegate.cli.registry import COMMANDS
from tidegate.core.errors import TidegateError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.serve import argument_parser
from tidegate.launch.services import SERVICES

CHART = ROOT / "helm" / "tidegate"
# Of typer's copy of click, whose module is its own.
USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__base__)
# What a mention in a sentence may leave out.
MISSING = re.compile(r"Missing (?:argument|option|parameter)|Option '\S+' requires an argument")
# What a reader replaces: by a number where one is wanted.
NUMBERS = {"N": "3"}
PLACEHOLDER = re.compile(r"[A-Z_.,]+|<.*>|.*\.\.\.")
YAML_BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# Options whose file or folder the command writes.
WRITTEN = ("--folder", "--into", "--to", "--dir", "-o")
IN_THE_REPOSITORY = re.compile(r"(?:runs|helm|k8s|examples|benchmarks|tests|tools)/[\w./-]+")
HELM_FLAGS = {
    **dict.fromkeys(("-n", "--namespace", "-f", "--values", "--set", "--set-json", "--timeout"), 1),
    **dict.fromkeys(
        ("--reset-then-reuse-values", "--create-namespace", "--install", "--wait", "--force", "--logs"), 0
    ),
}
HELM_WITH_VALUES = ("install", "upgrade", "template")
HELM_OTHERS = ("test", "uninstall", "rollback", "history", "status")
KUBECTL_CHANGES = ("apply", "create", "delete", "edit", "label", "patch", "scale")
KUBECTL_LOOKS = ("describe", "exec", "get", "logs", "port-forward", "wait")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_are_accepted(page: Path) -> None:
    assert [f"{command}: {problem}" for command in commands_of(page) for problem in problems(command)] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tidegate trian run.yaml", "no command"),
        ("tidegate up runs/cartpole.yaml --untill x", "No such option"),
        ("tidegate up", "Missing parameter"),
        ("tidegate serve actor --run-directory x", "required"),
        ("tidegate plan --actors many", "valid int"),
        ("tidegate up runs/cartpol.yaml", "no file"),
        ("tidegate up runs/cartpole.yaml --set staleness.max_lagg=2", "max_lagg"),
        ("kubectl -n rl exec rl-admission-0 -- tidegate await --util x", "No such option"),
        ("tidegate status | slo --jsonn", "No such option"),
        ("make runn", "no target"),
        ("make run RUNN=runs/cartpole.yaml", "no variable"),
        ('make run ARGS="--sett staleness.max_lag=0"', "No such option"),
        ("make bench ARGS=nothing", "no bench"),
        ("helm install rl tidegate", "no chart"),
        ("helm install rl helm/tidegate --values-file x", "no flag"),
        ("helm install operator helm/tidegate-operator --set watch.everything=true", "everything"),
        ("helm upgrade rl helm/tidegate --set run.staleness.max_lagg=4", "max_lagg"),
        ("helm upgrade rl helm/tidegate --set run.staleness.max_lag=four", "four"),
        ("helm install rl helm/tidegate -f helm/tidegate/presets/none.yaml", "no file"),
        ('helm install rl helm/tidegate --set-json \'networkPolicy.externalEgress=[{"cird":"x"}]\'', "cird"),
        ("kubectl -n rl scael deployment/rl-actor", "no verb"),
        ("kubectl apply -k k8s/overlays/none", "no file"),
    ],
)
def test_a_wrong_command_is_named(line: str, said: str) -> None:
    found = [problem for command in commands_in(f"```\n{line}\n```\n") for problem in problems(command)]
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_of_a_page_are_values_of_the_chart_or_of_a_run_file(page: Path) -> None:
    values = values_file(CHART / "values.yaml")
    for block in YAML_BLOCK.findall(page.read_text(encoding="utf-8")):
        settings = yaml.safe_load(block)
        # Values, a run file, or the section of a service in one.
        readings = [
            settings,
            {"run": settings},
            *({"run": {name: settings}} for name in SERVICES),
        ]
        refused = [schema_problems(merged(values, reading)) for reading in readings]
        assert [] in refused, (block, refused[:2])


def test_commands_are_read_from_blocks_spans_pipes_and_usages() -> None:
    text = (
        "`tidegate up` and `make 22 from 3`.\n"
        "```\nmake images \\\n  push TAG=1   # both\ntidegate samples [RUN] [--version V | --last N] [--json]\n"
        "helm template t helm/tidegate | sed -n 's/a//p' && kubectl exec p -- tidegate status | slo\n```\n"
        "    FOO=1 .venv/bin/tidegate export RUN_DIR [--data FILE ...]\n"
    )
    assert [str(command) for command in commands_in(text)] == [
        "make images push TAG=1",
        "tidegate samples RUN --version V --last N --json",
        "helm template t helm/tidegate",
        "kubectl exec p",
        "tidegate status",
        "tidegate slo",
        "tidegate export RUN_DIR --data FILE",
        "tidegate up",
    ]


def problems(command: DocumentedCommand) -> list[str]:
    """Why a reader who types the command would be refused."""
    program, *words = command.words
    checks: dict[str, Callable[[Sequence[str], bool], Iterator[str]]] = {
        "tidegate": tidegate_problems,
        "make": make_problems,
        "helm": helm_problems,
        "kubectl": kubectl_problems,
    }
    missing = [
        f"no file {path}"
        for before, word in pairwise(command.words)
        for path in re.findall(rf"(?:^|=)({IN_THE_REPOSITORY.pattern})$", word)
        if before not in WRITTEN and not (ROOT / path).exists()
    ]
    return missing or list(checks[program](words, command.complete))


def tidegate_problems(words: Sequence[str], complete: bool) -> Iterator[str]:
    name, *arguments = words
    if name not in COMMANDS:
        if not name.startswith("-"):
            yield f"no command {name}"
        return
    if name == "serve":
        if arguments or complete:
            yield from serve_problems(arguments)
        return
    group = build([name])
    yield from parse_problems(group.commands[name], name, arguments, complete=complete, parent=group)
    yield from override_problems(arguments)


def serve_problems(arguments: Sequence[str]) -> Iterator[str]:
    """`serve` has a parser of its own."""
    known = {"SERVICE": "actor", **NUMBERS}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            argument_parser().parse_args([known.get(each, each) for each in arguments])
    except SystemExit:
        yield said.getvalue()


def parse_problems(
    command: Any, name: str, arguments: Sequence[str], *, complete: bool, parent: TyperGroup | None = None
) -> Iterator[str]:
    """Why the parser refuses the arguments. The command's function does not run."""
    if not arguments and not complete:
        return
    context = None if parent is None else typer.Context(parent, **parent.context_settings)
    try:
        command.make_context(name, [NUMBERS.get(each, each) for each in arguments], parent=context)
    except USAGE_ERROR as error:
        said = str(error)
        if complete or not MISSING.search(said):
            yield said


def override_problems(arguments: Sequence[str]) -> Iterator[str]:
    """Settings of `--set` that the run file does not take; a file of the reader's is one like CartPole's."""
    settings = [
        value
        for flag, value in pairwise(arguments)
        if flag == "--set" and not PLACEHOLDER.fullmatch(value.partition("=")[0])
    ]
    if settings:
        runs = [each for each in arguments if each.startswith("runs/")]
        try:
            read_run_file(ROOT / (runs or ["runs/cartpole.yaml"])[0], settings)
        except TidegateError as error:
            yield f"{error.what}: {error.why}"


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE)


def make_problems(words: Sequence[str], complete: bool) -> Iterator[str]:
    targets = [word for word in words if "=" not in word]
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    yield from (f"no target {target}" for target in targets if target not in TARGETS)
    yield from (f"no variable {name}" for name in variables if f"$({name})" not in MAKEFILE)
    arguments = variables.get("ARGS", "").split()
    if not arguments or PLACEHOLDER.fullmatch(arguments[0]):
        return
    if "run" in targets:
        yield from tidegate_problems(["up", variables.get("RUN", "runs/cartpole.yaml"), *arguments], complete)
    elif "sim" in targets:
        yield from tidegate_problems(["sim", *arguments], complete)
    elif "bench" in targets:
        alone = typer.Typer(add_completion=False)
        alone.command()(bench)
        yield from parse_problems(get_command(alone), "bench", arguments, complete=complete)
        if not arguments[0].startswith("-") and arguments[0] not in BENCHES:
            yield f"no bench {arguments[0]}"


def helm_problems(words: Sequence[str], complete: bool) -> Iterator[str]:
    verb, *rest = words
    if verb not in (*HELM_WITH_VALUES, *HELM_OTHERS):
        yield f"no verb {verb}"
    flags, plain = split_flags(rest)
    yield from (f"no flag {flag} of this test" for flag, _ in flags if flag not in HELM_FLAGS)
    if verb not in HELM_WITH_VALUES or not (complete or len(plain) == 2):
        return
    if len(plain) != 2 or not (ROOT / plain[1] / "Chart.yaml").is_file():
        yield f"no chart {plain[1:]}"
        return
    chart = ROOT / plain[1]
    yield from schema_problems(values_of(flags, chart), chart)


@functools.cache
def schema(chart: Path) -> Any:
    return jsonschema.Draft202012Validator(
        json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    )


def schema_problems(values: dict[str, Any], chart: Path = CHART) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in schema(chart).iter_errors(values)]


def split_flags(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Helm's flags with their values, and the other words."""
    flags: list[tuple[str, str]] = []
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            plain.append(word)
            continue
        flag, equals, value = word.partition("=")
        flags.append((flag, value if equals or not HELM_FLAGS.get(flag) else next(rest, "")))
    return flags, plain


def values_of(flags: Sequence[tuple[str, str]], chart: Path) -> dict[str, Any]:
    """A chart's values with files and settings, as helm merges them; a reader's own file adds nothing."""
    values = values_file(chart / "values.yaml")
    for flag, name in flags:
        if flag in ("-f", "--values") and IN_THE_REPOSITORY.fullmatch(name):
            values = merged(values, values_file(ROOT / name))
    for flag, text in flags:
        if flag in ("--set", "--set-json"):
            key, _, value = text.partition("=")
            # The schema tells texts from numbers; both read them as YAML does.
            node: Any = yaml.safe_load(value)
            for part in reversed([part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", key)]):
                node = {part: node}
            values = merged(values, node)
    return values


def values_file(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Maps by key; null removes."""
    answer = dict(values)
    for key, value in over.items():
        below = answer.get(key)
        if value is None:
            answer.pop(key, None)
        elif isinstance(value, dict) and isinstance(below, dict):
            answer[key] = merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value))
        else:
            answer[key] = value
    return answer


def kubectl_problems(words: Sequence[str], complete: bool) -> Iterator[str]:
    del complete
    _, plain = split_flags(words)
    if plain and plain[0] not in (*KUBECTL_CHANGES, *KUBECTL_LOOKS):
        yield f"no verb {plain[0]} of this test"
