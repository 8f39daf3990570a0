"""Faults of a node, done to one pod, of which neither its callers nor Kubernetes are told: no network, no CPU.

They are done by a privileged pod in a namespace of its own, which sees the processes of its node.
"""

import json
import uuid
from collections.abc import Generator
from contextlib import contextmanager

from tests.cluster.kube import Namespace, run

# The processes of a pod have its name as their host's.
_FIND = """
import ctypes, fcntl, glob, os, signal, socket, struct, sys
def processes(pod):
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if f"HOSTNAME={pod}".encode() in open(path, "rb").read().split(b"\\0"):
                yield int(path.split("/")[2])
        except (FileNotFoundError, ProcessLookupError):
            pass
found = list(processes(sys.argv[1]))
assert found, f"no process of {sys.argv[1]} on this node"
"""
_CUT_OFF = """
with open(f"/proc/{found[0]}/ns/net") as network:
    assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    SIOCSIFFLAGS = 0x8914
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"eth0", 0))
"""
_SIGNAL = """
for process in found:
    os.kill(process, getattr(signal, sys.argv[2]))
"""


class NodeFaults:
    """Does them, by the privileged pod ``place``."""

    def __init__(self, place: Namespace) -> None:
        self._place = place

    def cut_off(self, pod: str) -> None:
        """Take the pod's network away for good: not even the end of a connection leaves it."""
        self._run(_CUT_OFF, pod)

    def freeze(self, pod: str) -> None:
        """Stop its processes; its kernel still acknowledges what is sent to it."""
        self._run(_SIGNAL, pod, "SIGSTOP")

    def kill(self, pod: str) -> None:
        """End its processes without a word."""
        self._run(_SIGNAL, pod, "SIGKILL")

    def thaw(self, pod: str) -> None:
        """Let its processes go on."""
        self._run(_SIGNAL, pod, "SIGCONT")

    def _run(self, program: str, *arguments: str) -> None:
        self._place.kubectl("exec", self._place.release, "--", "python3", "-c", _FIND + program, *arguments)


@contextmanager
def node_faults(*, image: str) -> Generator[NodeFaults]:
    """A privileged pod, on the cluster's only node; ``image`` has python3."""
    place = Namespace(f"node-faults-{uuid.uuid4().hex[:6]}", "faults")
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": place.namespace, "labels": labels},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": place.release},
        "spec": {
            "hostPID": True,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": place.release,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "securityContext": {"privileged": True, "runAsUser": 0},
                }
            ],
        },
    }
    run("kubectl", "create", "--filename", "-", given=json.dumps(namespace))
    try:
        place.kubectl("create", "--filename", "-", given=json.dumps(pod))
        place.kubectl("wait", f"pod/{place.release}", "--for=condition=Ready", "--timeout=60s")
        yield NodeFaults(place)
    finally:
        run("kubectl", "delete", "namespace", place.namespace, "--wait=false")
