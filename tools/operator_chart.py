"""Write what the chart of the operator has from elsewhere, or check it: the CRD, permissions, schema, README's table.

Usage: .venv/bin/python -m tools.operator_chart [--check]. The CRD is a copy of the one of helm/tidegate, permissions
are those of services/tidegate/operator/rbac.py, the schema of `config` is that of its type, a row of the table is a
key of values.yaml with its default and meaning.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate.operator.config import OperatorConfig
from tidegate.operator.rbac import rules
from tools.chart_readme import readme, write_or_check

HELM = Path(__file__).resolve().parent.parent / "helm"
CHART = HELM / "tidegate-operator"
CRD = Path("crds") / "trainingruns.yaml"
# Fields of the configuration that the chart sets from values of their own.
RENDERED = ("namespaces", "values", "telemetry")

Schema = dict[str, Any]


def schema() -> Schema:
    """The chart's schema, with that of the configuration as its type has it."""
    whole: Schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    (reference,), definitions = msgspec.json.schema_components(
        [OperatorConfig], ref_template="#/$defs/config.{name}"
    )
    named = {f"config.{name}": _strict(cast("Schema", each)) for name, each in definitions.items()}
    config = named.pop(str(reference["$ref"]).rpartition("/")[2])
    properties = {key: each for key, each in config["properties"].items() if key not in RENDERED}
    named.pop("config.TelemetryConfig")
    whole["properties"]["config"] = {**config, "properties": properties}
    own = {key: each for key, each in whole["$defs"].items() if not key.startswith("config.")}
    whole["$defs"] = {**own, **named}
    return whole


def _strict(node: Schema) -> Schema:
    """Descriptions as one text, and no unknown keys."""
    found = dict(node)
    if isinstance(found.get("description"), str):
        found["description"] = inspect.cleandoc(found["description"]).replace("``", "`")
    properties: Schema = found.get("properties", {})
    for key, value in properties.items():
        if isinstance(value, dict) and "$ref" in value:
            # A default of a whole section repeats those of its fields.
            properties[key] = {"$ref": value["$ref"]}
    return found


def build() -> dict[Path, str]:
    """Every file and its text."""
    permissions: Any = msgspec.to_builtins(rules())
    return {
        CHART / CRD: (HELM / "tidegate" / CRD).read_text(encoding="utf-8"),
        CHART / "files" / "permissions.json": json.dumps(permissions, indent=1) + "\n",
        CHART / "values.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        CHART / "README.md": readme(CHART),
    }


def main() -> int:
    """Write the files, or with ``--check`` report which are outdated."""
    description = "Write what the operator's chart has from the types and from the chart of a run."
    return write_or_check(build(), description=description)


if __name__ == "__main__":
    sys.exit(main())
