"""What the chart ships, judged by the programs that read it: promtool and the collector."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.observability.stack import FILES, ROOT, missing, program

pytestmark = pytest.mark.observability

RULES = sorted((ROOT / "helm/tidegate/rules").glob("*.yaml"))
CASES = sorted((Path(__file__).parent / "rules").glob("*.test.yaml"))
# What each overlay needs to be told.
OVERLAYS: dict[tuple[str, ...], dict[str, str]] = {
    (): {},
    ("collector-traces.yaml",): {"TIDEGATE_TRACES_ENDPOINT": "tempo:4317"},
    ("collector-kubernetes.yaml",): {"TIDEGATE_NAMESPACE": "training"},
    ("collector-traces.yaml", "collector-kubernetes.yaml"): {
        "TIDEGATE_TRACES_ENDPOINT": "tempo:4317",
        "TIDEGATE_NAMESPACE": "training",
    },
}


def run(name: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """What a program prints; the test is skipped where the program is not."""
    if reason := missing(name):
        pytest.skip(reason)
    found = subprocess.run(
        [program(name) or name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_promtool_accepts_every_rule() -> None:
    assert len(RULES) == 3
    assert "FAILED" not in run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_rules_fire_when_they_should_and_only_then(case: Path) -> None:
    run("promtool", "test", "rules", str(case))


@pytest.mark.parametrize("overlays", OVERLAYS, ids=lambda names: "+".join(names) or "alone")
def test_the_collector_accepts_its_configuration(overlays: tuple[str, ...]) -> None:
    configs = [part for name in ("collector.yaml", *overlays) for part in ("--config", str(FILES / name))]
    run("otelcol", "validate", *configs, environment=OVERLAYS[overlays])
