"""Mutual TLS by certificates of the chart's Job: training continues when all of them are issued again."""

import base64

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CommandError, Namespace, trains, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

SERVERS = ("task-queue", "trajectory-store", "weight-distribution", "learner", "environment")
# A kubelet shows a changed Secret to its pods after a minute or two.
RENEWAL_TIMEOUT_S = 300.0
# Updates: more than the work in flight provides.
MORE = 20
# The certificate that a server shows, trusted or not.
SHOWN = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], 7700), timeout=10))"
# Ends without an error only where a server accepts a client without a certificate.
CALL_WITHOUT_CERTIFICATE = (
    "import socket, ssl, sys\n"
    "context = ssl.create_default_context(cafile='/etc/tidegate-tls/ca.crt')\n"
    "context.set_alpn_protocols(['h2'])\n"
    "plain = socket.create_connection((sys.argv[1], 7700), timeout=10)\n"
    "sys.exit(not context.wrap_socket(plain, server_hostname=sys.argv[1]).recv(1))\n"
)


@pytest.fixture(scope="module")
def certified(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    release = Namespace(namespace, "tls")
    values = cartpole_values(tmp_path_factory.mktemp("values"))
    install(release, values, "--set", "tls.selfSigned.enabled=true")
    return release


def in_admission(release: Namespace, program: str, server: str) -> str:
    """What a Python program prints in admission's pod; its argument is a service's host."""
    host = f"{release.release}-{server}"
    return release.kubectl("exec", f"{release.release}-admission-0", "--", "python3", "-c", program, host)


def issued(release: Namespace, component: str) -> str:
    """The certificate in the Secret of a component; PEM."""
    encoded = release.get("secret", f"{release.release}-{component}-tls")["data"]["tls.crt"]
    return base64.b64decode(encoded).decode()


def processes(release: Namespace) -> dict[str, int]:
    """Restarts of each container of the services and the broker, by pod and name."""
    return {
        f"{pod['metadata']['name']} {container['name']}": container["restartCount"]
        for component in (*SERVERS, "admission", "actor", "nats")
        for pod in release.pods(component)
        for container in pod["status"]["containerStatuses"]
    }


def test_servers_refuse_a_client_without_a_certificate(certified: Namespace) -> None:
    trains(certified, more=MORE, timeout_s=RENEWAL_TIMEOUT_S)
    for server in SERVERS:
        with pytest.raises(CommandError):
            in_admission(certified, CALL_WITHOUT_CERTIFICATE, server)


def test_training_continues_without_a_restart_when_every_certificate_is_issued_again(
    certified: Namespace, figures: dict[str, object]
) -> None:
    before = processes(certified)
    earlier = {server: issued(certified, server) for server in SERVERS}
    name = certified.release
    for component in (*SERVERS, "admission", "actor", "nats"):
        lacking = '{"data": {"tls.crt": null, "tls.key": null}}'
        certified.kubectl("patch", "secret", f"{name}-{component}-tls", "--type=merge", "--patch", lacking)
    certified.kubectl("create", "job", "renewal", f"--from=cronjob/{name}-certificates")
    until(
        "the Job issued every certificate",
        lambda: certified.get("job", "renewal")["status"].get("succeeded") == 1,
        timeout_s=RENEWAL_TIMEOUT_S,
    )
    renewed = {server: issued(certified, server) for server in SERVERS}
    assert all(renewed[server] != earlier[server] for server in SERVERS)
    figures["renewed_certificates_in_use_s"] = until(
        "every server shows its new certificate",
        lambda: all(
            in_admission(certified, SHOWN, server).strip() == renewed[server].strip() for server in SERVERS
        ),
        timeout_s=RENEWAL_TIMEOUT_S,
    )
    figures["renewed_certificates_trains_s"] = trains(certified, more=MORE, timeout_s=RENEWAL_TIMEOUT_S)
    assert processes(certified) == before
    # A new process connects to all, and all to it.
    certified.kubectl("delete", "pod", f"{name}-weight-distribution-0", "--grace-period=0", "--force")
    figures["renewed_certificates_new_pod_trains_s"] = trains(
        certified, more=MORE, timeout_s=RENEWAL_TIMEOUT_S
    )
    audit = certified.audit()
    assert audit["balanced"], audit["problems"]
