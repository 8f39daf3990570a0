"""Write ``helm/tidegate/values.schema.json`` from the types of the run file and the chart's own schema; or check it.

``.Values.run`` is a run file, so its schema comes from the types that read it: the shared part and each service's
section, as the command line's registry names them. ``schema/chart.json`` has the chart's own values.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate.launch.run_plan import REPLICAS_MAX, RunFile
from tidegate.launch.services import SERVICES, config_type
from tidegate.launch.short_forms import SHORT_FIELDS
from tidegate.runtime.instances import REPLICATED

CHART = Path(__file__).resolve().parent.parent / "helm" / "tidegate"
OWN_SCHEMA = CHART / "schema" / "chart.json"
SCHEMA = CHART / "values.schema.json"

Schema = dict[str, Any]


def run_file_schema() -> tuple[Schema, dict[str, Schema]]:
    """The schema of a whole run file, and the definitions that it refers to, named ``run.<Type>``."""
    kinds = [RunFile, *(config_type(service) for service in SERVICES)]
    references, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/run.{name}")
    named = {f"run.{name}": cast("Schema", schema) for name, schema in definitions.items()}
    for kind, field in SHORT_FIELDS:
        properties = named[f"run.{kind}"]["properties"]
        properties[field] = _or_text(properties[field])
    run = dict(named[_name(references[0])])
    properties = dict(run["properties"])
    for service, reference in zip(SERVICES, references[1:], strict=True):
        if service in REPLICATED:
            section = named[_name(reference)]
            count = {
                "type": "integer",
                "minimum": 1,
                "maximum": REPLICAS_MAX,
                "description": "Processes on one machine; in a cluster `kubectl scale` decides.",
            }
            section["properties"] = {**section.get("properties", {}), "replicas": count}
        properties[service] = reference
    run["properties"] = properties
    del named[_name(references[0])]
    return run, named


def _or_text(schema: Schema) -> Schema:
    """A field that also takes a text; of a mapping each value does, and of a list each entry."""
    if isinstance(items := schema.get("items"), dict):
        return {**schema, "items": _or_text(cast("Schema", items))}
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return {**schema, "additionalProperties": _or_text(cast("Schema", values))}
    default = {"default": schema["default"]} if "default" in schema else {}
    return {
        "anyOf": [{"type": "string"}, {key: each for key, each in schema.items() if key != "default"}],
        **default,
    }


def build() -> Schema:
    """The chart's schema with the run file's in the place of ``run``, strict throughout."""
    schema: Schema = json.loads(OWN_SCHEMA.read_text(encoding="utf-8"))
    run, definitions = run_file_schema()
    schema["title"], schema["description"] = "Values of the chart tidegate", "Made by tools/chart_schema.py."
    schema["properties"]["run"] = run
    own: dict[str, Schema] = schema["$defs"]
    schema["$defs"] = {
        **{name: _extended(definition, own) for name, definition in own.items()},
        **definitions,
    }
    for node in _objects(schema):
        is_open = node.pop("x-open", False)
        if node.get("type") == "object" and "properties" in node and not is_open:
            node["additionalProperties"] = False
        if "$ref" in node:
            # A default of a whole section repeats those of its fields.
            node.pop("default", None)
        if isinstance(node.get("description"), str):
            node["description"] = inspect.cleandoc(node["description"]).replace("``", "`")
    return schema


def _extended(definition: Schema, own: dict[str, Schema]) -> Schema:
    """With the properties of the definition that it extends, and of what that one extends."""
    parent = definition.get("x-extends")
    if parent is None:
        return definition
    inherited = _extended(own[parent], own)["properties"]
    rest = {key: value for key, value in definition.items() if key != "x-extends"}
    return {**rest, "properties": {**inherited, **definition["properties"]}}


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def _objects(node: object) -> Iterator[Schema]:
    """Every schema inside of a schema; values under ``default`` are data."""
    if isinstance(node, dict):
        schema = cast("Schema", node)
        yield schema
        for key, value in schema.items():
            if key not in ("default", "enum", "const", "required"):
                yield from _objects(value)
    elif isinstance(node, list):
        for value in cast("list[object]", node):
            yield from _objects(value)


def text() -> str:
    """The file as it must be."""
    return json.dumps(build(), indent=2, ensure_ascii=False, sort_keys=False) + "\n"


def main() -> int:
    """Write the file, or with ``--check`` report whether it matches the types."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the file is behind")
    wanted = text()
    if parser.parse_args().check:
        if not SCHEMA.exists() or SCHEMA.read_text(encoding="utf-8") != wanted:
            sys.stderr.write(f"{SCHEMA.name} is behind the run file's types: run `make chart`\n")
            return 1
        return 0
    SCHEMA.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
