"""Parses a run file's document into a ``RunPlan``; refuses unknown keys, wrong types and combinations that cannot work.

Every service process parses its part of the document from ``run.json``, so nothing heavy is imported here.
"""

import math
from typing import Annotated, Any, cast

import msgspec

from tidegate.actor.engines.registry import find_engine
from tidegate.core.errors import ConfigError
from tidegate.launch.cross_checks import check_plan
from tidegate.launch.run_plan import REPLICAS_MAX, RunFile, RunPlan
from tidegate.launch.services import SERVICES, config_type
from tidegate.launch.short_forms import expand_short_forms
from tidegate.launch.validation_errors import explain_validation
from tidegate.runtime.instances import REPLICATED


class _Replicas(msgspec.Struct, frozen=True):
    replicas: Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)] = 1


def parse_plan(raw: dict[str, Any], *, source: str) -> RunPlan:
    """Type a run file's document.

    Raises:
        ConfigError: a key, type, range or combination is wrong; ``source`` names its origin.
    """
    try:
        raw = expand_short_forms(raw)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.what}", why=error.why, fix=error.fix) from error
    file = parse_shared(raw, source=source)
    services: dict[str, Any] = {}
    replicas: dict[str, int] = {}
    for service in SERVICES:
        services[service], replicas[service] = parse_section(raw, service, source=source)
    problem = check_plan(file, services)
    if problem:
        raise ConfigError(f"{source}: {problem.what}", why=problem.why, fix=problem.fix)
    engine = find_engine(services["actor"].engine, workload=file.workload, policy=file.policy)
    replicas |= {
        service: int(service == engine.service) for service, entry in SERVICES.items() if entry.optional
    }
    return RunPlan(file=file, services=services, replicas=replicas)


def parse_shared(raw: dict[str, Any], *, source: str) -> RunFile:
    """Type the shared part of a run file.

    Raises:
        ConfigError: a key, type or range is wrong.
    """
    shared = {key: value for key, value in raw.items() if key not in SERVICES}
    return _convert(shared, RunFile, source=source, path="")


def parse_section(raw: dict[str, Any], service: str, *, source: str) -> tuple[Any, int]:
    """Type one service's section; returns its config and its number of instances.

    Raises:
        ConfigError: a key, type or range is wrong.
    """
    section = raw.get(service)
    if section is None:
        section = {}
    replicas = 1
    if service in REPLICATED and isinstance(section, dict):
        fields = dict(cast("dict[str, Any]", section))
        count = {"replicas": fields.pop("replicas")} if "replicas" in fields else {}
        replicas = _convert(count, _Replicas, source=source, path=service).replicas
        section = fields
    return _convert(section, config_type(service), source=source, path=service), replicas


def _convert(section: Any, kind: type[Any], *, source: str, path: str) -> Any:
    place = _not_finite(section, path)
    if place:
        raise ConfigError(
            f"{source}: {place} is not a finite number",
            why="the run's files are JSON, which has no other numbers",
            fix="write a large number, such as 1.0e+9",
        )
    extra = tuple(SERVICES) if kind is RunFile else (("replicas",) if path and path in REPLICATED else ())
    try:
        return msgspec.convert(section, kind)
    except msgspec.ValidationError as error:
        raise explain_validation(
            error, section, kind, source=source, path=path, also_allowed=extra
        ) from error


def _not_finite(value: object, place: str) -> str:
    """Where a section has infinity or what is no number; empty where it has neither."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else place
    items: list[tuple[object, object]] = []
    if isinstance(value, dict):
        items = list(cast("dict[object, object]", value).items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(cast("list[object]", value)))
    found = (_not_finite(item, f"{place}.{key}" if place else str(key)) for key, item in items)
    return next(filter(None, found), "")
