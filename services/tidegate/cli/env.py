"""``tidegate env``: what an environment observes and accepts, or why it cannot be trained on."""

import asyncio
import math
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.run_argument import SetOption
from tidegate.core.errors import ConfigError
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    observation_leaves,
)
from tidegate.launch.environment_check import Described
from tidegate.launch.preflight import check_environment
from tidegate.launch.run_file import read_run_file
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

RUN_FILE_SUFFIXES = (".yaml", ".yml")


class EnvironmentReport(msgspec.Struct, frozen=True):
    """The answer of ``env --json``; an infinite bound is null there. ``num_parameters``: 0 without a policy."""

    environment: EnvironmentDescription
    num_parameters: int


def env(
    run: Annotated[str, typer.Argument(help="Run file, or an environment's id.", metavar="RUN|ENV_ID")],
    set_: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Describe an environment as a run would use it, and check that the policy fits it.

    An id is one of Gymnasium's, or module:EnvId of a module in this folder.
    """
    workload, policy = _question(run, set_ or [])
    described = asyncio.run(check_environment(workload, policy))
    if json:
        write_json(EnvironmentReport(described.description, described.num_parameters))
        return
    open_console().print(render(described, policy))


def _question(run: str, overrides: list[str]) -> tuple[WorkloadConfig, PolicyConfig | None]:
    if not run.endswith(RUN_FILE_SUFFIXES):
        if overrides:
            raise ConfigError("--set overrides a run file, and an id has none", fix="name a run file")
        return WorkloadConfig(kind="segments", env=run), None
    file = read_run_file(Path(run), overrides).file
    if file.workload.kind != "segments":
        raise ConfigError(f"{run} steps no environment", why="its workload is text")
    return file.workload, file.policy


def render(described: Described, policy: PolicyConfig | None) -> Table:
    """The description in words, a row a fact."""
    description = described.description
    table = Table.grid(padding=(0, 2))
    table.add_row("environment", description.env_id)
    for name, leaf in observation_leaves(description.observation_space).items():
        table.add_row(name, in_words(leaf))
    table.add_row("actions", in_words(description.action_space))
    limit = description.max_episode_steps
    table.add_row("time limit", f"{limit:,} steps" if limit else "none")
    table.add_row("vector form", "its own" if description.is_vectorised else "copies, one after the other")
    table.add_row("speed", f"{description.steps_per_cpu_s:,.0f} steps per CPU-second under random actions")
    if policy is not None:
        table.add_row("policy", f"{policy.kind} with {described.num_parameters:,} parameters")
    return table


def in_words(space: Space) -> str:
    """A space as a user would say it."""
    match space:
        case BoxSpace(shape, dtype, low, high):
            return f"{_shape(shape)} of {dtype}, {_bound(min(low))} to {_bound(max(high))}"
        case DiscreteSpace(num_values, start):
            return f"one of {num_values:,} values, {start} to {start + num_values - 1}"
        case MultiDiscreteSpace(shape, nums_values, _):
            return f"{_shape(shape)} of indices, each one of {', '.join(map(str, nums_values[:8]))} values"
        case MultiBinarySpace(shape):
            return f"{_shape(shape)} of flags"
        case DictSpace(spaces):
            return "; ".join(f"{name}: {in_words(part)}" for name, part in spaces.items())
        case TupleSpace(spaces):
            return "; ".join(in_words(part) for part in spaces)


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def _bound(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:g}"
