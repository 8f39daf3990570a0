"""The pods of the chart: their number, start, drain and stop, and their permissions on a node."""

from typing import Any

import msgspec
import pytest
import yaml

from tests.chart.rendering import (
    EVERYTHING,
    PRESETS,
    SERVICES,
    WITH_INFERENCE,
    Manifest,
    component,
    containers,
    environment,
    named,
    needs_helm,
    of_kind,
    own_pods,
    pods,
    render,
    workloads,
)
from tidegate.core.workloads import Workloads
from tidegate.launch.run_plan import RunFile

pytestmark = [pytest.mark.chart, needs_helm]

SCALABLE = ("t-actor", "t-environment")
GRACE_BEYOND_DRAIN_S = 20


def drain_timeout_of(objects: list[Manifest]) -> float:
    mounted = yaml.safe_load(named(objects, "ConfigMap", "t-run")["data"]["run.yaml"])
    defaults = {field.name: field.default for field in msgspec.structs.fields(RunFile)}
    return float(mounted.get("drain_timeout_s", defaults["drain_timeout_s"]))


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_only_kubectl_and_autoscalers_set_the_number_of_actors(preset: str) -> None:
    rendered = {each["metadata"]["name"]: each for each in workloads(render(preset))}
    for name in SCALABLE:
        assert rendered[name]["kind"] == "Deployment"
        assert "replicas" not in rendered[name]["spec"]


def test_number_of_actors_is_helms_only_when_asked_for() -> None:
    assert named(render(values={"actor.replicas": 0}), "Deployment", "t-actor")["spec"]["replicas"] == 0
    assert (
        "replicas" not in named(render(values={"actor.replicas": 0}), "Deployment", "t-environment")["spec"]
    )


def test_all_other_services_are_stateful_and_one_each() -> None:
    rendered = {each["metadata"]["name"]: each for each in workloads(render())}
    for name in {f"t-{service}" for service in SERVICES} - set(SCALABLE):
        assert rendered[name]["kind"] == "StatefulSet"
        assert rendered[name]["spec"]["replicas"] == 1
        assert rendered[name]["spec"]["podManagementPolicy"] == "Parallel"
        assert len(rendered[name]["spec"]["volumeClaimTemplates"]) == 1


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_inference_is_one_pod_without_a_volume_of_its_own_and_only_where_actors_ask_it(preset: str) -> None:
    assert "t-inference" not in {each["metadata"]["name"] for each in workloads(render(preset))}
    objects = render(preset, WITH_INFERENCE)
    workload = named(objects, "StatefulSet", "t-inference")
    assert workload["spec"]["replicas"] == 1
    assert "volumeClaimTemplates" not in workload["spec"]
    (container,) = containers(workload["spec"]["template"])
    assert container["args"][:2] == ["serve", "inference"]
    assert "tidegate-light" in container["image"]
    assert container["resources"]["limits"]["memory"]
    addresses = yaml.safe_load(named(objects, "ConfigMap", "t-run")["data"]["cluster.yaml"])["addresses"]
    assert addresses["inference"] == ["t-inference:7700"]
    assert named(objects, "Service", "t-inference")["spec"]["ports"][0]["port"] == 7700


@pytest.mark.parametrize("drain_timeout_s", [None, 0.5, 10, 45.5, 100])
def test_grace_period_outlasts_the_drain(drain_timeout_s: float | None) -> None:
    objects = render(values={} if drain_timeout_s is None else {"run.drain_timeout_s": drain_timeout_s})
    drain_s = drain_timeout_of(objects)
    for pod in own_pods(objects).values():
        assert pod["spec"]["terminationGracePeriodSeconds"] == -(-drain_s // 1) + GRACE_BEYOND_DRAIN_S


def test_pause_before_the_signal_is_added_to_the_grace_period() -> None:
    pod = own_pods(render(values={"podDefaults.preStopSleepSeconds": 5}))["actor"]
    assert containers(pod)[0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 10 + GRACE_BEYOND_DRAIN_S + 5


def test_every_service_is_asked_three_questions_by_name() -> None:
    for pod in own_pods(render()).values():
        (container,) = containers(pod)
        for probe in ("startup", "readiness", "liveness"):
            assert container[f"{probe}Probe"]["grpc"] == {"port": 7700, "service": probe}


def test_startup_may_take_three_quarters_of_an_hour_or_what_is_set() -> None:
    def budget_s(values: dict[str, Any], service: str) -> int:
        probe = containers(own_pods(render(values=values))[service])[0]["startupProbe"]
        return probe["periodSeconds"] * probe["failureThreshold"]

    assert budget_s({}, "learner") == 45 * 60
    assert budget_s({"learner.startupBudgetSeconds": 7200}, "learner") == 7200
    assert budget_s({"learner.startupBudgetSeconds": 7200}, "actor") == 45 * 60


def test_every_pod_is_restricted_and_its_file_system_read_only() -> None:
    for name, pod in pods(render(values=EVERYTHING)):
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert (security["runAsUser"], security["fsGroup"]) == (10001, 10001), name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name
            scratch = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
            assert "/tmp" in scratch, name
            # The broker's reloader looks at its files every 30 s; nothing else waits for a fixed time.
            sleeps = any("sleep" in str(word) for word in container.get("command", []))
            assert sleeps is (container["name"] == "reloader"), name


def test_environments_pods_alone_get_what_their_sandbox_asks_of_the_kernel() -> None:
    def asked(values: dict[str, Any], service: str) -> dict[str, Any]:
        spec = own_pods(render(values=values))[service]["spec"]
        security = spec["securityContext"]
        kept = {key: security[key] for key in security if key.endswith("Profile")}
        return kept | {key: spec[key] for key in spec if key == "hostUsers"}

    runtimes = {"seccompProfile": {"type": "RuntimeDefault"}}
    values = {
        "environment.sandbox.seccompProfile": "profiles/tidegate-sandbox.json",
        "environment.sandbox.appArmorProfile": "tidegate-sandbox",
        "environment.sandbox.userNamespace": True,
    }
    assert asked(values, "environment") == {
        "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/tidegate-sandbox.json"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "tidegate-sandbox"},
        "hostUsers": False,
    }
    assert all(asked(values, service) == runtimes for service in set(SERVICES) - {"environment"})
    assert asked({}, "environment") == runtimes


def test_every_container_asks_for_something_and_has_a_memory_limit() -> None:
    for name, pod in pods(render(values=EVERYTHING)):
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


def test_only_admission_and_the_credentials_job_see_the_api_server() -> None:
    mounting = {component(pod) for _, pod in pods(render()) if pod["spec"]["automountServiceAccountToken"]}
    assert mounting == {"admission", "credentials"}
    apart = {"admission.kubernetes.enabled": False}
    assert "TIDEGATE_KUBERNETES" not in environment(own_pods(render(values=apart))["admission"])
    mounting = {
        component(pod) for _, pod in pods(render(values=apart)) if pod["spec"]["automountServiceAccountToken"]
    }
    assert mounting == {"credentials"}


def test_every_component_has_an_account_of_its_own() -> None:
    objects = render(values=EVERYTHING)
    accounts = {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
    used: dict[str, set[str]] = {}
    for _, pod in pods(objects):
        if component(pod) != "test":
            used.setdefault(pod["spec"]["serviceAccountName"], set()).add(component(pod))
    assert set(used) == accounts
    assert all(len(components) == 1 for components in used.values())
    for each in of_kind(objects, "ServiceAccount"):
        assert each["automountServiceAccountToken"] is False


def test_graphics_card_is_a_limit_and_hidden_from_who_has_none() -> None:
    rendered = own_pods(render("single-gpu"))
    learner = containers(rendered["learner"])[0]
    assert learner["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert learner["image"] == "tidegate-learner-gpu:0.1.0"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(rendered["learner"])
    for service in set(SERVICES) - {"learner"}:
        assert "nvidia.com/gpu" not in containers(rendered[service])[0]["resources"]["limits"]
        assert environment(rendered[service])["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_resource_claims_stand_in_for_a_device_plugin() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    values = {"learner.resourceClaims": claims, "learner.gpu": 2, "learner.gpuResource": ""}
    learner = own_pods(render(values=values))["learner"]
    assert learner["spec"]["resourceClaims"] == claims
    (container,) = containers(learner)
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert set(container["resources"]["limits"]) == {"memory"}
    assert container["image"] == "tidegate-learner-gpu:0.1.0"
    assert environment(learner)["TIDEGATE_RANKS_IN_POD"] == "2"


def test_actors_are_light_unless_their_policy_or_a_card_says_otherwise() -> None:
    def image(values: dict[str, Any]) -> str:
        return str(containers(own_pods(render(values=values))["actor"])[0]["image"]).split(":")[0]

    assert image({}) == "tidegate-light"
    assert image({"run.policy.kind": "char_lm"}) == "tidegate-cpu"
    assert image({"actor.gpu": 1}) == "tidegate-actor-gpu"
    assert image({"actor.image": "cpu"}) == "tidegate-cpu"


def test_images_come_from_one_registry_by_tag_and_digest() -> None:
    digest = "sha256:" + "0" * 64
    values = {
        **EVERYTHING,
        "global.imageRegistry": "registry.internal/mirror/",
        "images.light.digest": digest,
    }
    seen = {container["image"] for _, pod in pods(render(values=values)) for container in containers(pod)}
    assert all(image.startswith("registry.internal/mirror/") for image in seen)
    assert f"registry.internal/mirror/tidegate-light:0.1.0@{digest}" in seen
    assert not any(image.endswith((":latest", ":")) for image in seen)


def test_learner_of_several_ranks_meets_over_a_headless_service() -> None:
    objects = render(values={"learner.ranks": 3})
    learner = named(objects, "StatefulSet", "t-learner")
    ranks = named(objects, "Service", "t-learner-ranks")
    assert learner["spec"]["replicas"] == 3
    assert learner["spec"]["serviceName"] == "t-learner-ranks"
    assert ranks["spec"]["clusterIP"] == "None"
    assert ranks["spec"]["publishNotReadyAddresses"] is True
    # One after the other, the first new pod would wait for ever for ranks of its own version.
    assert learner["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    container = learner["spec"]["template"]["spec"]["containers"][0]
    assert "command" not in container, "torchrun would offer a store that unpickles"
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["WORLD_SIZE"] == "3"
    assert environment["MASTER_ADDR"] == "t-learner-0.t-learner-ranks"
    assert environment["MASTER_PORT"] == "29400"
    assert "RANK" not in environment, "the pod's name numbers it"
    calls = named(objects, "Service", "t-learner")["spec"]["selector"]
    assert calls["statefulset.kubernetes.io/pod-name"] == "t-learner-0"


def test_one_of_several_pods_of_admission_is_called_and_they_keep_off_one_node() -> None:
    objects = render(values={"admission.replicas": 2, "run.backup": "s3://bucket/runs"})
    admission = named(objects, "StatefulSet", "t-admission")
    assert admission["spec"]["replicas"] == 2
    assert admission["spec"]["updateStrategy"] == {"type": "RollingUpdate"}, "one after the other"
    calls = named(objects, "Service", "t-admission")["spec"]
    assert calls["selector"]["tidegate.dev/leader"] == "true"
    assert calls.get("clusterIP") is None, "its callers keep one address"
    pod = admission["spec"]["template"]
    assert "tidegate.dev/leader" not in pod["metadata"]["labels"]
    for container in containers(pod):
        names = {each["name"]: each.get("value") for each in container["env"]}
        assert names["TIDEGATE_ADMISSION_PODS"] == "t-admission-0,t-admission-1", container["name"]
    (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    mine: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    own = own_pods(render(values={"admission.replicas": 2, "admission.affinity": mine}))["admission"]
    assert own["spec"]["affinity"] == mine


def test_single_pod_of_admission_is_called_whether_it_leads_or_not() -> None:
    objects = render()
    assert "tidegate.dev/leader" not in named(objects, "Service", "t-admission")["spec"]["selector"]
    assert "TIDEGATE_ADMISSION_PODS" not in environment(own_pods(objects)["admission"])
    assert "affinity" not in own_pods(objects)["admission"]["spec"]


def test_run_file_may_say_how_many_ranks_there_are() -> None:
    def ranks(values: dict[str, Any]) -> int:
        return int(named(render(values=values), "StatefulSet", "t-learner")["spec"]["replicas"])

    assert ranks({"run.learner.ranks": 2}) == 2
    assert ranks({"run.learner.ranks": 2, "learner.ranks": 4}) == 4


def test_learner_has_shared_memory_of_its_size() -> None:
    learner = own_pods(render(values={"learner.sharedMemory": "3Gi"}))["learner"]
    (volume,) = (each for each in learner["spec"]["volumes"] if each["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "3Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in containers(learner)[0]["volumeMounts"]


def test_spot_actors_are_a_second_deployment() -> None:
    objects = render("spot")
    main, spot = (named(objects, "Deployment", name)["spec"] for name in ("t-actor", "t-actor-spot"))
    assert "replicas" not in spot
    assert main["selector"]["matchLabels"] != spot["selector"]["matchLabels"]
    assert spot["template"]["spec"]["nodeSelector"] == {"tidegate.dev/capacity": "spot"}
    assert "nodeSelector" not in main["template"]["spec"]
    seen = environment(own_pods(objects)["admission"])["TIDEGATE_ACTOR_DEPLOYMENTS"]
    assert seen == "t-actor,t-actor-spot"
    # What counts and ranks actors finds those of every pool.
    label = {"app.kubernetes.io/instance": "t", "app.kubernetes.io/component": "actor"}
    for deployment in (main, spot):
        assert label.items() <= deployment["template"]["metadata"]["labels"].items()


def test_actors_are_replaced_without_a_spare_card() -> None:
    rolling = named(render(), "Deployment", "t-actor")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": "25%"}


def test_rollout_waits_for_as_long_as_a_pod_may_start() -> None:
    deadline = {"actor.startupBudgetSeconds": 5400, "actor.strategy.type": "Recreate"}
    model = {"model.url": "https://hub/it", "model.claim": "hub", "run.policy.path": "/models/base"}
    objects = render(values={**deadline, **model, "model.deadlineSeconds": 1000})
    actor, environment = (
        named(objects, "Deployment", f"t-{name}")["spec"] for name in ("actor", "environment")
    )
    assert actor["progressDeadlineSeconds"] == 600 + 5400 + 1000  # the model is loaded before the start
    assert environment["progressDeadlineSeconds"] == 600 + 2700
    assert actor["strategy"] == {"type": "Recreate"}, (
        "Kubernetes refuses settings of a rolling update beside it"
    )


def test_part_of_a_gpu_is_asked_for_by_its_own_resource() -> None:
    part = "nvidia.com/mig-3g.40gb"
    values = {"learner.gpu": 1, "learner.gpuResource": part, "actor.gpu": 1}
    rendered = own_pods(render(values=values))
    limits = containers(rendered["learner"])[0]["resources"]["limits"]
    assert (limits[part], "nvidia.com/gpu" in limits) == (1, False)
    assert environment(rendered["learner"])["TIDEGATE_DEVICE"] == "cuda"
    assert containers(rendered["actor"])[0]["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_every_pod_has_the_user_and_the_variables_of_all() -> None:
    everywhere = {
        "podDefaults.podSecurityContext": {"runAsUser": 20001},
        "commonEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "tls.selfSigned.enabled": True,
        "collector.mode": "builtin",
    }
    for name, pod in pods(render(values=everywhere)):
        assert pod["spec"]["securityContext"]["runAsUser"] == 20001, name
        assert ("HTTPS_PROXY" in environment(pod)) is (component(pod) not in ("nats", "collector")), name


@pytest.mark.parametrize("server", ["nats", "collector"])
def test_broker_and_collector_take_what_their_sections_accept(server: str) -> None:
    sidecar, first = {"name": "exporter", "image": "e:1"}, {"name": "wait", "image": "w:1"}
    own = {
        "env": [{"name": "A", "value": "1"}],
        "extraContainers": [sidecar],
        "initContainers": [first],
        "podSecurityContext": {"fsGroup": 3},
        "securityContext": {"runAsUser": 4},
    }
    values = {f"{server}.{key}": value for key, value in own.items()}
    (pod,) = (
        pod
        for _, pod in pods(render(values={**values, "collector.mode": "builtin"}))
        if component(pod) == server
    )
    main = pod["spec"]["containers"][0]
    assert {"name": "A", "value": "1"} in main["env"]
    assert main["securityContext"]["runAsUser"] == 4
    assert pod["spec"]["securityContext"]["fsGroup"] == 3
    assert sidecar in pod["spec"]["containers"]
    assert pod["spec"]["initContainers"] == [first]


def test_settings_for_all_pods_yield_to_a_services_own() -> None:
    values = {
        "podDefaults.nodeSelector": {"pool": "cpu"},
        "podDefaults.runtimeClassName": "gvisor",
        "learner.nodeSelector": {"pool": "gpu"},
        "learner.runtimeClassName": "",
        "learner.tolerations": [{"key": "gpu", "operator": "Exists"}],
        "admission.priorityClassName": "mine",
        "commonEnv": [{"name": "A", "value": "1"}],
        "commonLabels": {"team": "rl"},
        "podDefaults.topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    }
    rendered = own_pods(render(values=values))
    assert rendered["learner"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert rendered["actor"]["spec"]["nodeSelector"] == {"pool": "cpu"}
    runtimes = {service: pod["spec"].get("runtimeClassName") for service, pod in rendered.items()}
    assert runtimes.pop("learner") is None
    assert set(runtimes.values()) == {"gvisor"}, "also of environments, which run what a policy writes"
    assert rendered["learner"]["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert rendered["admission"]["spec"]["priorityClassName"] == "mine"
    for service, pod in rendered.items():
        assert environment(pod)["A"] == "1"
        assert pod["metadata"]["labels"]["team"] == "rl"
        (constraint,) = pod["spec"]["topologySpreadConstraints"]
        assert constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == service


def test_priorities_are_in_the_order_of_what_their_loss_costs() -> None:
    objects = render(values={"priorityClasses.create": True})
    values = {
        each["metadata"]["name"].removeprefix("space-t-"): each for each in of_kind(objects, "PriorityClass")
    }
    ranked = sorted(values, key=lambda name: -values[name]["value"])
    assert ranked == ["control", "learner", "actor", "environment"]
    assert all(each["preemptionPolicy"] == "Never" for each in values.values())
    used = {service: pod["spec"]["priorityClassName"] for service, pod in own_pods(objects).items()}
    assert used["learner"] == "space-t-learner"
    assert used["admission"] == used["trajectory-store"] == "space-t-control"


def test_broker_and_learner_of_production_are_guaranteed_their_resources() -> None:
    for name, pod in pods(render("production-ha")):
        if component(pod) in ("nats", "learner"):
            resources = containers(pod)[0]["resources"]
            assert resources["requests"] == resources["limits"], name


def test_volumes_outlive_the_release_unless_told_otherwise() -> None:
    def kept(values: dict[str, Any]) -> set[str]:
        sets = of_kind(render(values=values), "StatefulSet")
        return {each["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] for each in sets}

    assert kept({}) == {"Retain"}
    assert "Delete" in kept({"learner.persistence.retain": False})
    off = {f"{service}.persistence.enabled": False for service in ("taskQueue", "nats")}
    for name in ("t-task-queue", "t-nats"):
        spec = named(render(values=off), "StatefulSet", name)["spec"]
        assert "volumeClaimTemplates" not in spec
        assert any(each["name"] == "data" for each in spec["template"]["spec"]["volumes"])


def test_disruption_budgets_hold_no_node_for_ever() -> None:
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind(render(), "PodDisruptionBudget")}
    assert {name: each["maxUnavailable"] for name, each in budgets.items()} == {
        "t-nats": 1,
        "t-actor": "25%",
        "t-environment": "25%",
    }
    assert all(each["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for each in budgets.values())
    asked = render(values={"learner.pdb.enabled": True})
    assert named(asked, "PodDisruptionBudget", "t-learner")["spec"]["maxUnavailable"] == 0


@pytest.mark.parametrize(("replicas", "path"), [(1, "/healthz"), (3, "/healthz?js-enabled-only=true")])
def test_broker_of_one_server_is_restarted_when_a_stream_stores_nothing(replicas: int, path: str) -> None:
    [pod] = [
        pod for name, pod in pods(render(values={"nats.replicas": replicas})) if name == "StatefulSet/t-nats"
    ]
    [container] = [each for each in containers(pod) if "livenessProbe" in each]
    assert container["livenessProbe"]["httpGet"] == {"path": path, "port": "monitor"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "Deployment"),
        (
            {
                "actor.nodes": 2,
                "actor.workerContainers": [{"name": "server", "image": "server:1"}],
                "admission.kubernetes.enabled": False,
                "run.actor.server.update_dir": "/shared/versions",
            },
            "LeaderWorkerSet",
        ),
    ],
)
def test_pods_know_the_objects_that_a_fix_names(values: dict[str, Any], kind: str) -> None:
    objects = render(values={**values, "fullnameOverride": "mine"})
    document = yaml.safe_load(named(objects, "ConfigMap", "mine-run")["data"]["cluster.yaml"])
    known = msgspec.convert(document["workloads"], Workloads)
    assert set(known.scaled) == {"actor", "environment"}
    there = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects}
    assert set(known.scaled.values()) <= there
    assert f"{kind.lower()}/mine-actor" in known.scaled.values()
    selector = f"app.kubernetes.io/instance={known.release},"
    labels = named(objects, "StatefulSet", "mine-learner")["spec"]["selector"]["matchLabels"]
    assert known.reason("learner").endswith(
        selector + f"app.kubernetes.io/component={labels['app.kubernetes.io/component']}"
    )
    assert labels["app.kubernetes.io/instance"] == known.release
