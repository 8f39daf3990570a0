"""Which names the instances of a service may have, in a laptop's run and as pods."""

import pytest

from tidegate.runtime.instances import instance_name, is_instance_of


@pytest.mark.parametrize("service", ["actor", "environment", "learner", "task_queue", "supervisor"])
def test_instance_of_a_laptop_has_the_name_that_the_supervisor_gives(service: str) -> None:
    assert is_instance_of(service, instance_name(service, 12))


@pytest.mark.parametrize(
    ("service", "instance"),
    [
        ("actor", "t-actor-0"),
        ("environment", "t-environment-6c9f7b5d4-x2x7k"),
        ("actor", "my-environment-actor-0"),
        ("environment", "actor-environment-6c9f7b5d4-x2x7k"),
    ],
)
def test_pod_has_the_last_service_in_its_name(service: str, instance: str) -> None:
    assert is_instance_of(service, instance)


@pytest.mark.parametrize(
    ("service", "instance"),
    [
        ("actor", "learner"),
        ("actor", "environment-0"),
        ("actor", "actor-environment-0"),
        ("actor", "actor"),
        ("actor", "supervisor"),
        ("learner", "learner-0"),
        ("learner", "actor-0"),
        ("environment", ""),
        ("environment", "t-myenvironment-0"),
    ],
)
def test_name_of_an_instance_of_another_service_is_refused(service: str, instance: str) -> None:
    assert not is_instance_of(service, instance)
