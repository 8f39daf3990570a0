import pytest

from tidegate.admission.kubernetes.access import access_from
from tidegate.admission.kubernetes.rbac import rules
from tidegate.core.errors import ConfigError, ConflictError, NotFoundError, UnavailableError
from tidegate.runtime.kubernetes_api import DeniedError, error_of

POD = {
    "TIDEGATE_KUBERNETES": "1",
    "TIDEGATE_NAMESPACE": "rl",
    "TIDEGATE_RELEASE": "t",
    "TIDEGATE_POD_NAME": "t-admission-0",
    "TIDEGATE_ACTOR_DEPLOYMENTS": "t-actor, t-actor-spot,",
}


def test_there_is_no_cluster_unless_it_is_enabled() -> None:
    assert access_from({}) is None
    assert access_from({**POD, "TIDEGATE_KUBERNETES": "0"}) is None


def test_names_come_from_the_pods_environment() -> None:
    access = access_from(POD)
    assert access is not None
    assert access.deployments == ("t-actor", "t-actor-spot")
    assert (access.lease, access.identity, access.run) == ("t-admission-leader", "t-admission-0", "")
    assert access.selector == "app.kubernetes.io/instance=t,app.kubernetes.io/component=actor"
    named = access_from({**POD, "TIDEGATE_CRD": "1"})
    assert named is not None
    assert named.run == "t"


def test_admission_of_one_pod_takes_no_turns() -> None:
    alone, two = (
        access_from(POD),
        access_from({**POD, "TIDEGATE_ADMISSION_PODS": "t-admission-0,t-admission-1"}),
    )
    assert alone is not None
    assert alone.pods == ()
    assert two is not None
    assert two.pods == ("t-admission-0", "t-admission-1")


@pytest.mark.parametrize("missing", [name for name in POD if name != "TIDEGATE_KUBERNETES"])
def test_access_that_names_nothing_is_refused(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        access_from({**POD, missing: ""})


def test_answers_become_errors_by_what_can_be_done_about_them() -> None:
    kinds = {401: DeniedError, 403: DeniedError, 404: NotFoundError, 409: ConflictError, 422: ConfigError}
    kinds |= {429: UnavailableError, 500: UnavailableError, 503: UnavailableError}
    assert {status: type(error_of(status, "why", "GET /x")) for status in kinds} == kinds


def test_the_role_grants_little_and_the_scale_only_to_the_controller() -> None:
    def granted(mode: str, *, cost: bool = False, run: str = "") -> dict[tuple[str, str], tuple[str, ...]]:
        found = rules(
            mode="controller" if mode == "controller" else "observe",
            deletion_cost=cost,
            deployments=["t-actor"],
            lease="t-admission-leader",
            run=run,
        )
        assert all("*" not in rule.verbs + rule.resources + rule.api_groups for rule in found)
        return {
            (resource, verb): rule.resource_names
            for rule in found
            for resource in rule.resources
            for verb in rule.verbs
        }

    observing, controlling = granted("observe"), granted("controller", cost=True, run="t")
    assert ("deployments/scale", "patch") not in observing
    assert ("pods", "patch") not in observing
    assert ("pods", "list") not in observing
    assert all(
        ("pods", "list") in found for found in (granted("observe", cost=True), granted("observe", run="t"))
    )
    assert controlling["deployments/scale", "patch"] == ("t-actor",)
    assert controlling["trainingruns/status", "patch"] == ("t",)
    touched = {resource for resource, _ in controlling}
    assert touched.isdisjoint({"secrets", "configmaps", "nodes"})
    assert {verb for _, verb in controlling} == {"get", "list", "create", "update", "patch"}
