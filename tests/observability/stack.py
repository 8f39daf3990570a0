"""The real components: collector, Prometheus and Jaeger as processes on free loopback ports."""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidegate.runtime.ports import LOOPBACK, pick_ports
from tools.monitoring.rule_files import rule_files
from tools.monitoring.slo_rules import Period

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm/tidegate/files"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate-observability"
# As long as the objectives' own window, so that budgets of rules and of `tidegate slo` are over the same time.
PERIOD = Period(period_s=600.0, window_min_s=12.0)
SCRAPE_PERIOD_S = 1.0
READY_TIMEOUT_S = 60.0

FoundT = TypeVar("FoundT")


def program(name: str) -> str | None:
    """Where a component is: on the PATH, or where tools/observability/build.sh put it."""
    return shutil.which(name) or shutil.which(name, path=str(CACHE))


def missing(*programs: str) -> str:
    """Why a test that needs these cannot run; empty if it can."""
    absent = [name for name in programs if program(name) is None]
    return f"no {', '.join(absent)}: run `sh tools/observability/build.sh`" if absent else ""


def get(url: str, **query: str) -> Any:
    """JSON from a component."""
    address = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)


def until(look: Callable[[], FoundT | None], *, what: str, timeout_s: float = READY_TIMEOUT_S) -> FoundT:
    """What ``look`` finds, as soon as it finds anything."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            found = look()
        except (urllib.error.URLError, ConnectionError):
            found = None
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.25)


@dataclass(frozen=True)
class Stack:
    """Where to send telemetry, and whom to ask."""

    otlp: str
    prometheus: str
    jaeger: str

    def query(self, expr: str, *, at_s: float | None = None) -> list[dict[str, Any]]:
        """Series of an instant query: labels under ``metric``, the number under ``value``."""
        moment = {} if at_s is None else {"time": f"{at_s:.3f}"}
        found = get(f"{self.prometheus}/api/v1/query", query=expr, **moment)["data"]["result"]
        return list(found)

    def number(self, expr: str, *, at_s: float | None = None) -> float | None:
        """The one number of a query; None where there is none."""
        found = self.query(expr, at_s=at_s)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire now, by name."""
        alerts = get(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"}

    def traces(self, service: str, operation: str, *, limit: int = 20) -> list[dict[str, Any]]:
        """Traces that hold such a span."""
        found = get(
            f"{self.jaeger}/api/traces", service=service, operation=operation, limit=str(limit), lookback="1h"
        )
        return list(found["data"])

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """One trace by its id."""
        try:
            found = get(f"{self.jaeger}/api/traces/{trace_id}")["data"]
        except urllib.error.HTTPError:
            return None
        return found[0] if found else None


@contextmanager
def stack(folder: Path) -> Generator[Stack, None, None]:
    """Everything up and ready; ended and forgotten afterwards."""
    ports = pick_ports(9)
    otlp, http, page, health, own, jaeger_otlp, jaeger_http, jaeger_grpc, prometheus = ports
    environment = {
        "TIDEGATE_COLLECTOR_HOST": LOOPBACK,
        "TIDEGATE_COLLECTOR_GRPC_PORT": str(otlp),
        "TIDEGATE_COLLECTOR_HTTP_PORT": str(http),
        "TIDEGATE_COLLECTOR_METRICS_PORT": str(page),
        "TIDEGATE_COLLECTOR_HEALTH_PORT": str(health),
        "TIDEGATE_COLLECTOR_SELF_PORT": str(own),
        "TIDEGATE_TRACES_ENDPOINT": f"{LOOPBACK}:{jaeger_otlp}",
    }
    jaeger_file = folder / "jaeger.yaml"
    jaeger_file.write_text(json.dumps(_jaeger(jaeger_otlp, jaeger_http, jaeger_grpc)))
    rules = folder / "rules"
    rules.mkdir()
    for name, text in rule_files(PERIOD).items():
        (rules / name).write_text(text)
    prometheus_file = folder / "prometheus.yml"
    prometheus_file.write_text(json.dumps(_prometheus(rules, page=page, own=own)))
    with ExitStack() as running:
        for command in (
            ["jaeger", "--config", str(jaeger_file)],
            [
                "otelcol",
                *("--config", str(FILES / "collector.yaml")),
                *("--config", str(FILES / "collector-traces.yaml")),
            ],
            [
                "prometheus",
                f"--config.file={prometheus_file}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={LOOPBACK}:{prometheus}",
                "--enable-feature=exemplar-storage",
            ],
        ):
            running.enter_context(_process(command, environment, log=folder / f"{command[0]}.log"))
        found = Stack(
            otlp=f"{LOOPBACK}:{otlp}",
            prometheus=f"http://{LOOPBACK}:{prometheus}",
            jaeger=f"http://{LOOPBACK}:{jaeger_http}",
        )
        until(lambda: get(f"http://{LOOPBACK}:{health}"), what="the collector's health")
        until(lambda: get(f"{found.jaeger}/api/services") is not None, what="Jaeger's API")
        until(lambda: found.query("up"), what="a scrape by Prometheus")
        yield found


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], *, log: Path
) -> Generator[None, None, None]:
    path = program(command[0])
    assert path is not None
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [path, *command[1:]], env={**os.environ, **environment}, stdout=output, stderr=output
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _prometheus(rules: Path, *, page: int, own: int) -> dict[str, Any]:
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_PERIOD_S:g}s",
            "scrape_timeout": f"{SCRAPE_PERIOD_S:g}s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(rules / "*.yaml")],
        "scrape_configs": [
            {
                "job_name": "tidegate",
                "honor_labels": True,
                "static_configs": [{"targets": [f"{LOOPBACK}:{page}"]}],
            },
            {
                "job_name": "tidegate-collector",
                # As the chart's ServiceMonitor: its own counters do not name a run.
                "static_configs": [{"targets": [f"{LOOPBACK}:{own}"], "labels": {"tidegate_run_id": "r"}}],
            },
        ],
    }


def _jaeger(otlp: int, http: int, grpc: int) -> dict[str, Any]:
    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
            "pipelines": {
                "traces": {
                    "receivers": ["otlp"],
                    "processors": ["batch"],
                    "exporters": ["jaeger_storage_exporter"],
                }
            },
        },
        "extensions": {
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 100_000}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                "http": {"endpoint": f"{LOOPBACK}:{http}"},
                "grpc": {"endpoint": f"{LOOPBACK}:{grpc}"},
            },
        },
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"{LOOPBACK}:{otlp}"}}}},
        "processors": {"batch": {}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }
