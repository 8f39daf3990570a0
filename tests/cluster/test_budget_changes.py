"""The budget of a release changes while it trains: no pod restarts, and each gradient keeps its own budget."""

import json
from typing import Any

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CHART, Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

# The kubelet takes up to a minute and a half to show a changed ConfigMap in a pod.
IN_FORCE_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def training(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """CartPole that trains at the budget of its run file, 2 versions."""
    release = Namespace(namespace, "lag")
    install(release, cartpole_values(tmp_path_factory.mktemp("values")))
    until("it trains", lambda: version(release) >= 5, timeout_s=300)
    return release


def version(release: Namespace) -> float:
    return float(release.status()["values"].get("version_step", 0.0))


def limits(release: Namespace) -> tuple[float, float]:
    """``max_lag`` and ``max_running``, which follows it: one segment is a batch."""
    signals = json.loads(release.tidegate("explain", "--json"))["signals"]
    return signals["max_lag"], signals["max_running"]


def pods(release: Namespace) -> dict[str, Any]:
    """Each pod's uid, and how often its containers were restarted."""
    return {
        pod["metadata"]["uid"]: [each["restartCount"] for each in pod["status"]["containerStatuses"]]
        for pod in release.pods()
        if "job-name" not in pod["metadata"]["labels"]
    }


@pytest.mark.parametrize("change", ["raised", "lowered", "rolled back"])
def test_no_pod_restarts_and_the_audit_balances(
    training: Namespace, change: str, figures: dict[str, object]
) -> None:
    before = pods(training)
    max_lag = {"raised": 6, "lowered": 1, "rolled back": 6}[change]
    if change == "rolled back":
        training.helm("rollback", "--timeout", "5m")
    else:
        training.helm(
            "upgrade", str(CHART), "--reset-then-reuse-values", "--set", f"run.staleness.max_lag={max_lag}",
            "--timeout", "5m",
        )  # fmt: skip
    figures[f"max_lag_{change}_s"] = until(
        f"max_lag {max_lag} is in force",
        lambda: limits(training) == (max_lag, max_lag + 1),
        timeout_s=IN_FORCE_TIMEOUT_S,
    )
    start = version(training)
    until("ten more updates", lambda: version(training) >= start + 10, timeout_s=180)
    assert pods(training) == before, "the same pods, none of whose containers was restarted"
    audit = training.audit()
    assert audit["balanced"], audit["problems"]
    assert audit["over_budget"] == audit["trained_twice"] == 0
    figures[f"audit_{change}"] = {
        name: audit[name] for name in ("admitted", "trained", "dropped", "max_lag_trained")
    }
