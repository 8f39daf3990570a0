"""A release as a whole: its names, the components it installs, and those of the cluster it uses."""

import json
from typing import Any

import pytest

from tests.chart.rendering import (
    EVERYTHING,
    SERVICES,
    Manifest,
    component,
    containers,
    documents,
    environment,
    named,
    needs_helm,
    of_kind,
    own_pods,
    pods,
    refusal,
    render,
    render_text,
    workloads,
)
from tidegate.core.certificates import parse_request
from tidegate.core.distributions import parse_duration

pytestmark = [pytest.mark.chart, needs_helm]
KEDA = {
    "keda.enabled": True,
    "run.admission.scaling.mode": "external",
    "networkPolicy.scalerFrom": {"name": "keda"},
}


def test_autoscaler_asks_admission_and_never_shares_the_actors() -> None:
    objects = render(values=KEDA)
    assert not of_kind(objects, "TriggerAuthentication")
    scaled = named(objects, "ScaledObject", "t-actor")["spec"]
    assert scaled["triggers"][0]["metadata"]["scalerAddress"] == "t-admission.space:7700"
    assert "fallback" not in scaled  # while admission is away the number stays
    metrics = [{"type": "External", "external": {"metric": {"name": "tidegate_actors_wanted"}}}]
    hpa = {"hpa.enabled": True, "hpa.metrics": metrics}
    target = named(render(values=hpa), "HorizontalPodAutoscaler", "t-actor")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "t-actor")


@pytest.mark.parametrize("tls", ["selfSigned", "certManager"])
def test_autoscaler_has_a_certificate_where_admission_asks_for_one(tls: str) -> None:
    objects = render(values={**KEDA, f"tls.{tls}.enabled": True})
    (trigger,) = named(objects, "ScaledObject", "t-actor")["spec"]["triggers"]
    spec = named(objects, "TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]
    given = {each["parameter"]: (each["name"], each["key"]) for each in spec["secretTargetRef"]}
    secret = "t-scaler-tls"
    assert given == {
        "caCert": (secret, "ca.crt"),
        "tlsClientCert": (secret, "tls.crt"),
        "tlsClientKey": (secret, "tls.key"),
    }
    if tls == "selfSigned":
        made = [containers(pod)[0]["args"] for _, pod in pods(objects) if component(pod) == "certificates"]
        assert all(any(f"--certificate={secret}=scaler," in each for each in arguments) for arguments in made)
        assert len(made) == 2
    else:
        assert named(objects, "Certificate", secret)["spec"]["secretName"] == secret


CHANGED_LATER: list[dict[str, Any]] = [
    {"podDefaults.tolerations": [{"key": "a", "operator": "Exists"}]},
    {"commonLabels": {"team": "rl"}},
    {"commonEnv": [{"name": "A", "value": "1"}], "imagePullSecrets": [{"name": "mine"}]},
]


@pytest.mark.parametrize("changed", CHANGED_LATER, ids=json.dumps)
def test_job_whose_pod_an_upgrade_changes_is_another_job(changed: dict[str, Any]) -> None:
    """Kubernetes refuses another pod under the same name, and with it the whole upgrade."""
    options = {"doctor.enabled": True, "doctor.when": "install", "tls.selfSigned.enabled": True}

    def jobs(values: dict[str, Any]) -> dict[str, Manifest]:
        rendered = of_kind(render(values=values), "Job")
        kept = [each for each in rendered if "helm.sh/hook" not in each["metadata"].get("annotations", {})]
        return {each["metadata"]["name"]: each["spec"]["template"] for each in kept}

    before, after = jobs(options), jobs(options | changed)
    assert len(before) == len(after) == 4
    assert {name for name in before.keys() & after.keys() if before[name] != after[name]} == set()


@pytest.mark.parametrize(
    "values",
    [KEDA, {"rules.enabled": True}, {"metrics.serviceMonitor.enabled": True}],
    ids=str,
)
def test_missing_api_is_named_with_what_to_do(values: dict[str, Any]) -> None:
    output = refusal(values)
    assert "this cluster has no " in output
    assert "--api-versions" in output


def test_queue_label_is_on_the_workloads_that_need_quota() -> None:
    labelled = {
        service
        for service, pod in own_pods(render(values={"kueue.queueName": "team"})).items()
        if pod["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "team"
    }
    assert labelled == {"actor", "learner"}


def test_extra_objects_are_templates() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-mine"}}
    assert named(render(values={"extraObjects": [extra]}), "ConfigMap", "t-mine")


def test_render_is_the_same_every_time() -> None:
    first = render_text(values=EVERYTHING)
    render_text.__globals__["_text"].cache_clear()
    assert render_text(values=EVERYTHING) == first
    assert documents(first)


def test_two_releases_of_one_namespace_share_no_name() -> None:
    def names(release: str) -> set[str]:
        objects = render(values=EVERYTHING, release=release)
        return {f"{each['kind']}/{each['metadata']['name']}" for each in objects}

    assert names("a") & names("b") == set()


def test_names_fit_however_long_the_release_is() -> None:
    release = "r" * 53  # Helm's own limit
    objects = render(values=EVERYTHING, release=release, namespace="n" * 63)
    assert len({(each["kind"], each["metadata"]["name"]) for each in objects}) == len(objects)
    for each in objects:
        name = each["metadata"]["name"]
        assert len(name) <= (253 if each["kind"] == "PriorityClass" else 63), name
        # A StatefulSet's pods add a number and a revision's hash in a label.
        if each["kind"] == "StatefulSet":
            assert len(name) <= 52, name
        for value in each["metadata"].get("labels", {}).values():
            assert len(value) <= 63, value
    cluster = json.loads(named(objects, "ConfigMap", f"{release[:32]}-run")["data"]["cluster.yaml"])
    assert len(cluster["run_id"]) <= 48


def test_everything_is_in_the_namespace_and_labelled() -> None:
    wanted = {"name", "instance", "component", "part-of", "managed-by", "version"}
    for each in render(values=EVERYTHING):
        metadata = each["metadata"]
        if each["kind"] != "PriorityClass":
            assert metadata["namespace"] == "space", metadata["name"]
        assert {f"app.kubernetes.io/{key}" for key in wanted} <= set(metadata["labels"])
        assert metadata["labels"]["helm.sh/chart"] == "tidegate-0.1.0"


def test_selectors_hold_only_what_never_changes() -> None:
    for each in workloads(render(values=EVERYTHING)):
        keys = {key.rpartition("/")[2] for key in each["spec"]["selector"]["matchLabels"]}
        assert keys - {"pool"} == {"name", "instance", "component"}


def test_pods_receive_the_addresses_of_all_services(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.launch.cluster import read_cluster

    named_apart = render(values={"fullnameOverride": "big-run"}, release="big.run")
    data = named(named_apart, "ConfigMap", "big-run-run")["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("TIDEGATE_BROKER_USER", "actor")
    record = read_cluster(tmp_path)
    assert record.run_id == "cartpole-big-run"
    assert record.broker.url == "nats://big-run-nats:4222"
    assert record.addresses["trajectory_store"] == ["big-run-trajectory-store:7700"]
    assert "actor" not in record.addresses


@pytest.mark.parametrize(
    ("values", "copies"),
    [
        ({}, 1),
        ({"nats.replicas": 3}, 3),
        ({"nats.replicas": 3, "nats.streamCopies": 1}, 1),
        ({"nats.mode": "external", "nats.url": "nats://a:1", "nats.auth.existingSecret": "mine"}, 1),
    ],
    ids=str,
)
def test_streams_have_as_many_copies_as_the_broker_has_servers(values: dict[str, Any], copies: int) -> None:
    mounted = named(render(values=values), "ConfigMap", "t-run")["data"]["cluster.yaml"]
    assert json.loads(mounted)["stream_copies"] == copies


def test_certificates_are_mounted_and_health_answers_without_one() -> None:
    for service, pod in own_pods(render(values={"tls.existingSecret": "certificates"})).items():
        (container,) = containers(pod)
        assert environment(pod)["TIDEGATE_TLS_DIR"] == "/etc/tidegate-tls", service
        assert {"name": "tls", "mountPath": "/etc/tidegate-tls", "readOnly": True} in container[
            "volumeMounts"
        ]
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "tls")
        assert volume["secret"]["secretName"] == "certificates"
        # A kubelet has no certificate.
        assert {
            container[f"{probe}Probe"]["grpc"]["port"] for probe in ("startup", "readiness", "liveness")
        } == {7701}
    assert "TIDEGATE_TLS_DIR" not in environment(own_pods(render())["actor"])


def test_every_service_and_the_broker_have_a_certificate_of_their_own() -> None:
    objects = render(values={"tls.certManager.enabled": True, "nats.replicas": 3})
    certificates = {each["spec"]["commonName"]: each["spec"] for each in of_kind(objects, "Certificate")}
    assert certificates.keys() == {*SERVICES, "nats", "test", "streams", "t-authority"}
    assert len({each["secretName"] for each in certificates.values()}) == len(certificates)
    assert {"t-nats", "t-nats.space", "*.t-nats-peers"} <= set(certificates["nats"]["dnsNames"])
    for name in SERVICES:
        assert certificates[name]["usages"] == ["digital signature", "server auth", "client auth"]
        assert certificates[name]["issuerRef"]["name"] == "t-authority"
    for _, pod in pods(objects):
        if component(pod) not in ("credentials", "check"):
            (volume,) = (each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "tls")
            assert volume["secretName"] == certificates[component(pod)]["secretName"]
    for pod in own_pods(objects).values():
        variables = environment(pod)
        assert variables["TIDEGATE_BROKER_TLS_DIR"] == variables["TIDEGATE_TLS_DIR"] == "/etc/tidegate-tls"
    mounted = named(objects, "ConfigMap", "t-run")["data"]
    assert json.loads(mounted["cluster.yaml"])["broker_url"] == "tls://t-nats:4222"
    yours = {"name": "mine", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    objects = render(values={"tls.certManager": {"enabled": True, "issuer": yours}})
    assert not of_kind(objects, "Issuer")
    assert all(each["spec"]["issuerRef"] == yours for each in of_kind(objects, "Certificate"))
    assert "no cert-manager.io/v1" in refusal({"tls.certManager.enabled": True})
    assert "choose one" in refusal({"tls.certManager.enabled": True, "tls.existingSecret": "mine"})


def test_without_cert_manager_a_job_and_a_cron_job_issue_the_same_certificates() -> None:
    by_manager = render(values={"tls.certManager.enabled": True, "nats.replicas": 3})
    wanted = {
        each["spec"]["secretName"]: (each["spec"]["commonName"], tuple(each["spec"]["dnsNames"]))
        for each in of_kind(by_manager, "Certificate")
        if "dnsNames" in each["spec"]
    }
    objects = render(values={"tls.selfSigned.enabled": True, "nats.replicas": 3})
    jobs = {
        each["kind"]: pod
        for each in of_kind(objects, "Job", "CronJob")
        for _, pod in pods([each])
        if component(each) == "certificates"
    }
    assert jobs["Job"]["spec"] == jobs["CronJob"]["spec"]
    command, *arguments = containers(jobs["Job"])[0]["args"]
    given = [each.removeprefix("--").partition("=")[::2] for each in arguments]
    options = dict(given)
    assert (command, options["authority"]) == ("certificates", "t-authority")
    times = {
        "duration_s": parse_duration(options["duration"]),
        "renew_before_s": parse_duration(options["renew-before"]),
    }
    requests = [parse_request(text, **times) for key, text in given if key == "certificate"]
    assert {each.secret: (each.common_name, each.dns_names) for each in requests} == wanted
    for secret in ("t-authority", *wanted):
        assert "data" not in named(objects, "Secret", secret)
    keys = {"tls.crt", "tls.key", "ca.crt"}
    for _, pod in pods(objects):
        mounted = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "tls"]
        if component(pod) in ("credentials", "certificates", "check"):
            assert not mounted
        else:
            # With its items a pod waits for them; without it would start with an empty folder.
            assert [each["secretName"] for each in mounted] == [f"t-{component(pod)}-tls"]
            assert {item["key"] for item in mounted[0]["items"]} == keys
    for pod in own_pods(objects).values():
        variables = environment(pod)
        assert variables["TIDEGATE_BROKER_TLS_DIR"] == variables["TIDEGATE_TLS_DIR"] == "/etc/tidegate-tls"
    mounted_run = named(objects, "ConfigMap", "t-run")["data"]
    assert json.loads(mounted_run["cluster.yaml"])["broker_url"] == "tls://t-nats:4222"


def test_your_certificates_and_cert_managers_come_before_those_of_the_job() -> None:
    for yours in ({"tls.existingSecret": "mine"}, {"tls.certManager.enabled": True}):
        objects = render("production-ha", yours)
        assert not [each for each in objects if component(each) == "certificates"]
    assert [each for each in render("production-ha") if component(each) == "certificates"]


def test_external_broker_and_collector_come_by_address_and_secret() -> None:
    values = {
        "nats.mode": "external",
        "nats.url": "tls://nats.example:4222",
        "nats.auth.existingSecret": "mine",
        "nats.auth.user": "rl",
        "nats.tls.existingSecret": "ca",
        "calls.existingSecret": "tokens",
        "collector.mode": "external",
        "collector.endpoint": "otel.example:4317",
    }
    objects = render(values=values)
    assert not [each for each in objects if component(each) in ("nats", "collector", "credentials")]
    mounted = named(objects, "ConfigMap", "t-run")["data"]
    assert json.loads(mounted["cluster.yaml"])["broker_url"] == "tls://nats.example:4222"
    assert json.loads(mounted["run.yaml"])["telemetry"] == {"otlp_endpoint": "otel.example:4317"}
    variables = environment(own_pods(objects)["actor"])
    assert variables["TIDEGATE_BROKER_USER"] == "rl"
    assert variables["TIDEGATE_BROKER_PASSWORD_PATH"] == "/etc/tidegate-broker-user/password"
    assert broker_password_of(own_pods(objects)["actor"]) == ("mine", "password")
    assert variables["SSL_CERT_FILE"] == "/etc/tidegate-broker/ca.crt"
    assert "set nats.url" in refusal({"nats.mode": "external", "nats.auth.existingSecret": "mine"})
    assert "set nats.auth.existingSecret" in refusal({"nats.mode": "external", "nats.url": "nats://a:1"})
    assert "set collector.endpoint" in refusal({"collector.mode": "external"})


def broker_password_of(pod: Manifest) -> tuple[str, str]:
    """The Secret and its key that a pod's password is mounted from."""
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "broker")
    (item,) = volume["secret"]["items"]
    assert item["path"] == "password"
    return volume["secret"]["secretName"], item["key"]


def test_own_endpoint_of_a_run_wins_over_the_collectors() -> None:
    values = {"collector.mode": "builtin", "run.telemetry.otlp_endpoint": "mine:4317"}
    mounted = named(render(values=values), "ConfigMap", "t-run")["data"]["run.yaml"]
    assert json.loads(mounted)["telemetry"]["otlp_endpoint"] == "mine:4317"


def test_secrets_are_rendered_without_a_secret() -> None:
    rendered = of_kind(render(), "Secret")
    assert {each["metadata"]["name"] for each in rendered} == {"t-nats-auth", "t-call-auth"}
    assert all(set(each) == {"apiVersion", "kind", "metadata", "type"} for each in rendered)
    own = {"nats.auth.existingSecret": "mine", "calls.existingSecret": "tokens"}
    made = of_kind(render(values=own), "Secret", "Job")
    assert {component(each) for each in made} == {"check", "streams"}


def test_streams_are_created_by_a_job_that_a_changed_run_renews() -> None:
    def job(values: dict[str, Any]) -> Manifest:
        (found,) = (each for each in of_kind(render(values=values), "Job") if component(each) == "streams")
        return found

    first = job({})
    variables = environment(first["spec"]["template"])
    assert variables["TIDEGATE_BROKER_USER"] == "bootstrap"
    assert broker_password_of(first["spec"]["template"]) == ("t-nats-auth", "bootstrap.passwords")
    assert "helm.sh/hook" not in first["metadata"].get("annotations", {}), "Argo CD runs no hooks of Helm's"
    assert job({}) == first
    names = {job(values)["metadata"]["name"] for values in ({}, {"run.max_running": 7}, {"nats.replicas": 3})}
    assert len(names) == 3
    with_password = {
        component(pod) for _, pod in pods(render()) if "bootstrap.passwords" in str(pod["spec"]["volumes"])
    }
    assert with_password == {"streams"}
