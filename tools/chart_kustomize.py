"""Write ``k8s/`` from renders of the chart, or check that it is what the chart renders.

Usage: .venv/bin/python -m tools.chart_kustomize [--check]. The base is the chart with its
defaults, with the passwords and the tokens of calls in Secrets that an overlay generates. A component contains what one
option of the chart adds (objects) and changes (patches of the changed fields only, so that components combine); an
overlay does so for a preset.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from tidegate.runtime.call_credentials import DIGESTS_FILE, token_file
from tidegate.wire.call_permissions import ROLES
from tools.chart_programs import program

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "tidegate"
TARGET = ROOT / "k8s"
RELEASE = "tidegate"
SECRET = "tidegate-nats-auth"
PASSWORDS = "nats-auth.env"
CALL_SECRET = "tidegate-call-auth"
# A folder beside an overlay, with the files that `tidegate credentials --folder` writes.
CALL_FOLDER = "call-auth"
CALL_FILES = (*(token_file(role) for role in ROLES), DIGESTS_FILE)
APIS = ("monitoring.coreos.com/v1", "keda.sh/v1alpha1")
NOTE = "# Rendered from helm/tidegate by `make k8s`; not edited by hand.\n"
# Helm's own labels, wrong without Helm.
HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")

Manifest = dict[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overlay:
    """A preset of the chart over the base and some components."""

    preset: str
    components: tuple[str, ...] = field(default=())


BASE: Values = {
    "nats.auth.existingSecret": SECRET,
    "calls.existingSecret": CALL_SECRET,
    "networkPolicy.enabled": False,
}
COMPONENTS: dict[str, Values] = {
    "gpu": {"actor.gpu": 1, "learner.gpu": 1},
    "keda": {
        "keda.enabled": True,
        "run.admission.scaling.mode": "external",
        "networkPolicy.scalerFrom": {"kubernetes.io/metadata.name": "keda"},
    },
    "kueue": {"kueue.queueName": "tidegate"},
    "monitoring": {
        "collector.mode": "builtin",
        "metrics.serviceMonitor.enabled": True,
        "networkPolicy.metricsFrom": {"kubernetes.io/metadata.name": "monitoring"},
        # An overlay may change namespace and run, which rules of a release would have in their text.
        "rules.enabled": True,
        "rules.scope": "cluster",
        "dashboards.enabled": True,
        "dashboards.scope": "cluster",
    },
    "netpol": {"networkPolicy.enabled": True},
    "spot": {
        "actor.pools": {
            "spot": {
                "nodeSelector": {"tidegate.dev/capacity": "spot"},
                "tolerations": [
                    {
                        "key": "tidegate.dev/capacity",
                        "operator": "Equal",
                        "value": "spot",
                        "effect": "NoSchedule",
                    }
                ],
            }
        }
    },
}
# What two components need of each other: laid over both of them.
PAIRS = {"monitoring-netpol": ("monitoring", "netpol"), "keda-netpol": ("keda", "netpol")}
OVERLAYS = {
    "kind-cpu": Overlay("one-node-cpu"),
    "gpu-single": Overlay("single-gpu", ("netpol",)),
    "prod-ha": Overlay("production-ha", ("monitoring", "netpol", "monitoring-netpol")),
}


def render(values: Values, *, preset: str = "") -> dict[str, Manifest]:
    """The chart's objects by kind and name, without what is Helm's or a namespace's."""
    command = [
        program("helm") or "helm",
        "template",
        RELEASE,
        str(CHART),
        "--namespace",
        RELEASE,
        "--no-hooks",
    ]
    for api in APIS:
        command += ["--api-versions", api]
    if preset:
        command += ["--values", str(CHART / "presets" / f"{preset}.yaml")]
    for key, value in values.items():
        command += ["--set-json", f"{key}={json.dumps(value)}"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    objects = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
    for each in objects:
        _strip(each)
        if each["kind"] == "Job":  # Helm's Job has its content in its name; an overlay changes the content
            each["metadata"]["name"] = each["metadata"]["name"].rpartition("-")[0]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}


def _strip(node: object) -> None:
    if isinstance(node, dict):
        thing = cast("Manifest", node)
        # Kustomize sets namespaces of objects and of subjects by itself.
        if "labels" in thing or thing.get("kind") == "ServiceAccount":
            thing.pop("namespace", None)
        for label in HELM_LABELS:
            thing.pop(label, None)
        for value in thing.values():
            _strip(value)
    elif isinstance(node, list):
        for value in cast("list[object]", node):
            _strip(value)


def difference(old: object, new: object) -> Any:
    """A strategic merge patch that makes ``new`` of ``old``; None where they are the same."""
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("Manifest", old), cast("Manifest", new)
        patch: Manifest = dict.fromkeys(sorted(before.keys() - after.keys()))
        for key, value in after.items():
            if key not in before:
                patch[key] = value
            elif before[key] != value:
                patch[key] = difference(before[key], value)
        return patch
    if isinstance(old, list) and isinstance(new, list):
        before, after = _by_name(cast("list[Any]", old)), _by_name(cast("list[Any]", new))
        if before is not None and after is not None:
            gone: list[Any] = [{"name": name, "$patch": "delete"} for name in before if name not in after]
            changed = [
                {"name": name, **difference(before.get(name, {}), value)}
                for name, value in after.items()
                if before.get(name) != value
            ]
            return gone + changed
    return cast("Any", new)


def _by_name(items: list[Any]) -> dict[str, Manifest] | None:
    """A list that Kubernetes merges by name; None for those it replaces."""
    if items and all(isinstance(each, dict) and "name" in each for each in items):
        return {each["name"]: each for each in items}
    return None


def changes(old: dict[str, Manifest], new: dict[str, Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """New objects, and patches for changed ones.

    Raises:
        ValueError: an object is missing, which neither a component nor an overlay can express.
    """
    gone = sorted(old.keys() - new.keys())
    if gone:
        raise ValueError(f"{gone} are in the base only: an overlay can add and change, not remove")
    added = [thing for name, thing in new.items() if name not in old]
    patches: list[Manifest] = []
    for name, thing in new.items():
        if name in old and old[name] != thing:
            identity = {"apiVersion": thing["apiVersion"], "kind": thing["kind"]}
            patch: Manifest = difference(old[name], thing)
            metadata: Manifest = {"name": thing["metadata"]["name"], **(patch.pop("metadata", None) or {})}
            patches.append({**identity, "metadata": metadata, **patch})
    return added, patches


def values_of(overlay: Overlay) -> Values:
    """The values of an overlay's components."""
    values = dict(BASE)
    for component in overlay.components:
        values |= COMPONENTS.get(component, {})
    return values


def build() -> dict[str, str]:
    """Every file of ``k8s/`` that is rendered, by its path."""
    base = render(BASE)
    files = {
        "base/tidegate.yaml": _stream(list(base.values())),
        "base/kustomization.yaml": _kustomization({"resources": ["tidegate.yaml"]}),
    }
    for name, values in COMPONENTS.items():
        files |= _layer(f"components/{name}", base, render(BASE | values), {}, kind="Component")
    for name, (one, other) in PAIRS.items():
        both = render(BASE | COMPONENTS[one]) | render(BASE | COMPONENTS[other])
        both |= {
            key: thing for key, thing in render(BASE | COMPONENTS[one]).items() if base.get(key) != thing
        }
        together = render(BASE | COMPONENTS[one] | COMPONENTS[other])
        files |= _layer(f"components/{name}", both, together, {}, kind="Component")
    for name, overlay in OVERLAYS.items():
        values = values_of(overlay)
        head: Manifest = {
            "namespace": RELEASE,
            "resources": ["../../base"],
            "components": [f"../../components/{component}" for component in overlay.components],
            "secretGenerator": [
                {"name": SECRET, "envs": [PASSWORDS]},
                {"name": CALL_SECRET, "files": [f"{CALL_FOLDER}/{name}" for name in CALL_FILES]},
            ],
            # Pods refer to the Secret by this name; restart them yourself after a new password.
            "generatorOptions": {"disableNameSuffixHash": True},
        }
        files |= _layer(f"overlays/{name}", render(values), render(values, preset=overlay.preset), head)
    return files


def _layer(
    folder: str,
    old: dict[str, Manifest],
    new: dict[str, Manifest],
    head: Manifest,
    *,
    kind: str = "Kustomization",
) -> dict[str, str]:
    added, patches = changes(old, new)
    resources = [*head.get("resources", []), *(["objects.yaml"] if added else [])]
    written: Manifest = {**head, "resources": resources}
    if patches:
        written["patches"] = [{"path": "patches.yaml"}]
    files = {f"{folder}/kustomization.yaml": _kustomization(written, kind=kind)}
    if added:
        files[f"{folder}/objects.yaml"] = _stream(added)
    if patches:
        files[f"{folder}/patches.yaml"] = _stream(patches)
    return files


class _Blocks(yaml.CSafeDumper):
    """Multi-line texts as readable blocks."""


def _block(dumper: yaml.CSafeDumper, text: str) -> Any:
    return cast("Any", dumper).represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Blocks.add_representer(str, _block)


def _stream(objects: list[Manifest]) -> str:
    return NOTE + yaml.dump_all(objects, Dumper=_Blocks, sort_keys=False, width=2**16)


def _kustomization(content: Manifest, *, kind: str = "Kustomization") -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    filled = {key: value for key, value in content.items() if value}
    return _stream([{"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **filled}])


def main() -> int:
    """Write the files, or with ``--check`` report which differ."""
    parser = argparse.ArgumentParser(description="Write k8s/ from renders of the chart.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when k8s/ is behind the chart"
    )
    check: bool = parser.parse_args().check
    wanted = build()
    folders = [TARGET / each for each in ("base", "components", "overlays")]
    present = {str(path.relative_to(TARGET)) for each in folders for path in each.rglob("*.yaml")}
    stale = sorted(present - wanted.keys()) + [
        name
        for name, text in sorted(wanted.items())
        if not (TARGET / name).exists() or (TARGET / name).read_text(encoding="utf-8") != text
    ]
    if check:
        for name in stale:
            sys.stderr.write(f"k8s/{name} is not what the chart renders: run `make k8s` and commit it.\n")
        return 1 if stale else 0
    for name in stale:
        path = TARGET / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
