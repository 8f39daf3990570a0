"""A server that a run needs and the chart does not bring, in a pod of the namespace: S3, PostgreSQL.

The S3 server is Versity's gateway, which `go install github.com/versity/versitygw/cmd/versitygw@latest` builds:
``TIDEGATE_E2E_S3_IMAGE`` names an image in the cluster whose entry point it is.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.kube import Namespace

IMAGE_OF_S3 = os.environ.get("TIDEGATE_E2E_S3_IMAGE", "")
S3_PORT = 7070
S3_USER = {
    "AWS_ACCESS_KEY_ID": "tidegate",
    "AWS_SECRET_ACCESS_KEY": "of-this-test",
    "AWS_REGION": "us-east-1",
}

# As PodSecurity restricted wants it.
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def start_server(
    place: Namespace,
    *,
    image: str,
    port: int,
    data: str,
    environment: Mapping[str, str],
    secret: Mapping[str, Mapping[str, str]],
    arguments: Sequence[str] = (),
) -> None:
    """Start it under the name of ``place``, with a Service; ``data``: its folder that can be written.

    ``secret``: what clients need, by the name of the Secret.
    """
    name = place.release
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": variable, "value": value} for variable, value in environment.items()],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": data}],
    }
    if arguments:
        container["args"] = list(arguments)
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": 65534},
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
    }
    secrets = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": each}, "stringData": dict(content)}
        for each, content in secret.items()
    ]
    for manifest in (pod, service, *secrets):
        place.kubectl("create", "--filename", "-", given=json.dumps(manifest))
    place.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")


def start_s3(place: Namespace, *, secret: Mapping[str, Mapping[str, str]]) -> None:
    """Start an S3 server with the bucket ``runs``; ``secret`` as of ``start_server``."""
    start_server(
        place,
        image=IMAGE_OF_S3,
        port=S3_PORT,
        data="/buckets",
        arguments=["--port", f":{S3_PORT}", "--quiet", "posix", "/buckets"],
        environment={
            "ROOT_ACCESS_KEY": S3_USER["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": S3_USER["AWS_SECRET_ACCESS_KEY"],
        },
        secret=secret,
    )
    place.kubectl("exec", place.release, "--", "mkdir", "/buckets/runs")
