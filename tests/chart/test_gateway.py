"""Agents in other pods: they reach the actors' gateway with a key from a Secret, where policies allow it."""

import json
from typing import Any

import pytest

from tests.chart.rendering import (
    ROOT,
    Manifest,
    component,
    containers,
    environment,
    named,
    needs_helm,
    of_kind,
    pods,
    refusal,
    render,
    run_values,
)
from tidegate.actor.gateway.runner import HOST_VARIABLE, OPERATOR_KEY_VARIABLE
from tidegate.launch.run_parsing import parse_plan

pytestmark = [pytest.mark.chart, needs_helm]

RUN_FILE = ROOT / "runs" / "calculator-agent.yaml"
PORT = 8800
OPEN: dict[str, Any] = {
    **run_values(RUN_FILE),
    "actor.gateway.enabled": True,
    "actor.gateway.existingSecret": "agents",
}


def mounted_run(objects: list[Manifest]) -> dict[str, Any]:
    return json.loads(named(objects, "ConfigMap", "t-run")["data"]["run.yaml"])


def actor_pods(objects: list[Manifest]) -> list[Manifest]:
    return [pod for _, pod in pods(objects) if component(pod) == "actor"]


def let_in(values: dict[str, Any]) -> list[Manifest]:
    """The peers that may call an actor."""
    return named(render(values=values), "NetworkPolicy", "t-actor")["spec"].get("ingress", [])


def test_agents_request_episodes_from_one_service_with_every_actor_behind_it() -> None:
    objects = render(values={**OPEN, "actor.pools.spot.nodeSelector": {"pool": "spot"}})
    service = named(objects, "Service", "t-gateway")["spec"]
    assert [(each["port"], each["targetPort"]) for each in service["ports"]] == [(PORT, "gateway")]
    made = actor_pods(objects)
    assert len(made) == 2
    for pod in made:
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        assert {"name": "gateway", "containerPort": PORT} in containers(pod)[0]["ports"]
        variables = environment(pod)
        assert variables[OPERATOR_KEY_VARIABLE] == {"secretKeyRef": {"name": "agents", "key": "key"}}
        # Only one actor knows an episode: the agent connects to that actor.
        assert variables[HOST_VARIABLE] == {"fieldRef": {"fieldPath": "status.podIP"}}
    for _, pod in pods(objects):
        assert component(pod) == "actor" or OPERATOR_KEY_VARIABLE not in {
            each["name"] for each in containers(pod)[0].get("env", [])
        }


def test_actors_listen_beyond_their_pod_unless_the_run_sets_the_address() -> None:
    mounted = mounted_run(render(values=OPEN))
    assert parse_plan(mounted, source="run.yaml")
    assert (mounted["actor"]["gateway"]["host"], mounted["actor"]["gateway"]["port"]) == ("0.0.0.0", PORT)
    own = mounted_run(render(values={**OPEN, "run.actor.gateway.host": "10.1.2.3"}))
    assert own["actor"]["gateway"]["host"] == "10.1.2.3"


def test_gateway_stays_within_its_pod_unless_asked_for() -> None:
    objects = render(values=run_values(RUN_FILE))
    assert "host" not in mounted_run(objects)["actor"]["gateway"]
    assert not [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == "t-gateway"]
    for pod in actor_pods(objects):
        assert OPERATOR_KEY_VARIABLE not in environment(pod)
        assert [each["name"] for each in containers(pod)[0]["ports"]] == ["grpc"]


def test_gateway_without_a_port_or_a_key_is_refused() -> None:
    assert "set run.actor.gateway.port" in refusal({**OPEN, "run.actor.gateway.port": 0})
    assert "set run.actor.gateway.port" in refusal(
        {"actor.gateway": {"enabled": True, "existingSecret": "agents"}}
    )
    assert "set actor.gateway.existingSecret" in refusal({**OPEN, "actor.gateway.existingSecret": ""})


@pytest.mark.parametrize(
    ("policy", "peer"),
    [
        ({"agentPods": {"role": "agent"}}, {"podSelector": {"matchLabels": {"role": "agent"}}}),
        ({"agentsFrom": {"team": "rl"}}, {"namespaceSelector": {"matchLabels": {"team": "rl"}}}),
        (
            {"agentPods": {"role": "agent"}, "agentsFrom": {"team": "rl"}},
            {
                "namespaceSelector": {"matchLabels": {"team": "rl"}},
                "podSelector": {"matchLabels": {"role": "agent"}},
            },
        ),
    ],
    ids=str,
)
def test_policies_admit_the_named_agents_at_the_gateways_port_only(
    policy: dict[str, Any], peer: dict[str, Any]
) -> None:
    assert let_in({**OPEN, "networkPolicy": policy}) == [{"from": [peer], "ports": [{"port": PORT}]}]


def test_policies_admit_no_unnamed_agent() -> None:
    assert let_in(OPEN) == []
    assert let_in({"networkPolicy.agentPods": {"role": "agent"}}) == []
