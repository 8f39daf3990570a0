"""The tutorial that takes a task to a cluster, typed as a reader does, with the images that are tested.

Its bucket is one of ``tests/cluster/test_backup.py``'s server, in a namespace beside the tutorial's.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import TAG
from tests.cluster.kube import ROOT, Namespace, run
from tests.cluster.policy_enforcement import resolver_settings
from tests.cluster.servers import IMAGE_OF_S3, S3_PORT, S3_USER, start_s3
from tests.support.tutorials import walk
from tidegate.runtime.ports import pick_ports

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IMAGE_OF_S3, reason="TIDEGATE_E2E_S3_IMAGE names no image of an S3 server"),
]

NAMESPACE = "rl-tutorial"
BUCKET = "s3://runs/tidegate"
PUSH = 'make images push IMAGES="light cpu" REGISTRY=$REGISTRY/ TAG=$TAG'


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A folder with the chart; the namespace of the tutorial is gone afterwards."""
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    yield tmp_path
    run("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=300.0)


@pytest.fixture
def endpoint(namespace: str) -> Iterator[tuple[str, str]]:
    """An S3 server's address in the cluster, and on this machine."""
    place = Namespace(namespace, "s3")
    start_s3(place, secret={})
    [port] = pick_ports(1)
    forward = ["kubectl", "--namespace", namespace, "port-forward", "service/s3", f"{port}:{S3_PORT}"]
    with subprocess.Popen(forward) as forwarding:
        yield f"http://s3.{namespace}:{S3_PORT}", f"http://127.0.0.1:{port}"
        forwarding.kill()


def test_commands_of_the_tutorial_take_a_task_to_the_cluster_and_its_model_home(
    checkout: Path, endpoint: tuple[str, str]
) -> None:
    page = ROOT / "docs" / "tutorials" / "to_a_cluster.md"
    in_cluster, here = endpoint
    replaced = {
        # The images are there, under no registry's name.
        "export REGISTRY=registry.example/rl TAG=0.1.0": f"export REGISTRY= TAG={TAG}",
        PUSH: ":",
        "AWS_ACCESS_KEY_ID=...": f"AWS_ACCESS_KEY_ID={S3_USER['AWS_ACCESS_KEY_ID']}\nAWS_ENDPOINT_URL={in_cluster}",
        "AWS_SECRET_ACCESS_KEY=...": f"AWS_SECRET_ACCESS_KEY={S3_USER['AWS_SECRET_ACCESS_KEY']}",
        "AWS_REGION=eu-central-1": f"AWS_REGION={S3_USER['AWS_REGION']}",
        "set -a; . ./bucket.env; set +a": f"set -a; . ./bucket.env; AWS_ENDPOINT_URL={here}; set +a",
        "  --set run.backup=s3://my-bucket/tidegate --set backup.existingSecret=bucket --wait --timeout 10m": (
            f"  --set run.backup={BUCKET} --set backup.existingSecret=bucket --set backup.port={S3_PORT}"
            f" {' '.join(resolver_settings())} --wait --timeout 10m"
        ),
        "tidegate restore s3://my-bucket/tidegate taken-home": f"tidegate restore {BUCKET} taken-home",
    }
    sys.stdout.write("\n".join(walk(page, checkout, replaced=replaced)))
    assert (checkout / "model" / "model.safetensors").is_file()
