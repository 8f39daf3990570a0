"""A run on a cluster whose task queue and trajectory store are replicated to PostgreSQL, and how long it stands still.

``TIDEGATE_E2E_POSTGRES_IMAGE`` names an image in the cluster, built from ``postgres.Containerfile`` beside this file.
"""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import Namespace, balanced_audit, until
from tests.cluster.servers import start_server

IMAGE_OF_POSTGRES = os.environ.get("TIDEGATE_E2E_POSTGRES_IMAGE", "")
# The marks of a module whose tests need the server.
ON_POSTGRES = [
    pytest.mark.cluster,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not IMAGE_OF_POSTGRES, reason="TIDEGATE_E2E_POSTGRES_IMAGE names no image of PostgreSQL"
    ),
]
PASSWORD = "of-this-test"
STEPS_AFTER_A_LOSS = 5


def start_postgres(namespace: str) -> None:
    """A server in the namespace, and the Secret with its address."""
    start_server(
        Namespace(namespace, "postgres"),
        image=IMAGE_OF_POSTGRES,
        port=5432,
        data="/data",
        environment={"PASSWORD": PASSWORD},
        secret={"database": {"uri": f"postgresql://tidegate:{PASSWORD}@postgres/postgres"}},
    )


def install_replicated(release: Namespace, folder: Path, *more: str) -> None:
    """CartPole with replicas in PostgreSQL; it trains when this returns."""
    values = cartpole_values(folder, postgres={})
    install(release, values, "--set", "postgres.existingSecret=database", *more)
    until("training", lambda: len(steps(release)) >= 20, timeout_s=300)


def steps(release: Namespace) -> list[float]:
    """When each of the newest updates was made, since the epoch: of two minutes at least; by any pod that is there."""
    newest = "cat /dev/null /data/learner/steps.jsonl | tail -n 10000 | grep -o '\"at_s\":[0-9.]*' || true"
    there = [
        pod["metadata"]["name"] for pod in release.pods("learner") if pod["status"]["phase"] == "Running"
    ]
    lines = [
        line
        for pod in there
        for line in release.kubectl("exec", pod, "--", "sh", "-c", f"{newest} 2> /dev/null").splitlines()
    ]
    return sorted(float(line.partition(":")[2]) for line in lines)


def without_gradients_s(release: Namespace, *, since_s: float) -> float:
    """The longest time without an update since a loss, once training went on."""
    until("training after the loss", lambda: _trained_on(steps(release), since_s=since_s), timeout_s=300)
    return _longest_gap_s(steps(release), since_s=since_s)


def assert_nothing_was_lost(release: Namespace) -> None:
    """The audit balances, and no trajectory was given up."""
    audit = balanced_audit(release)
    assert audit["dropped"].get("failed", 0) == 0, audit


def _trained_on(at_s: list[float], *, since_s: float) -> bool:
    """Whether training stopped for a moment and went on, or has for a while shown no stop."""
    after = [moment for moment in at_s if moment > since_s]
    return len(after) >= STEPS_AFTER_A_LOSS and time.time() - since_s > 30.0 and time.time() - after[-1] < 2.0


def _longest_gap_s(at_s: list[float], *, since_s: float) -> float:
    """The longest time without an update since the loss, which may be of the pod that knows of those before it."""
    moments = [since_s, *(moment for moment in at_s if moment > since_s)]
    return round(max(later - earlier for earlier, later in pairwise(moments)), 1)
