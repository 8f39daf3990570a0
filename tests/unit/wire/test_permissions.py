"""The table of permissions against the code that needs them; `tests/integration/launch` tries it on a real server."""

import re
from pathlib import Path

import pytest

from tests.support.broker_users import ENVIRONMENT, TOPOLOGY
from tidegate.launch import services
from tidegate.wire.permissions import CONSUMERS, SERVICES, STREAMS, permissions, user_of
from tidegate.wire.subjects import POOL, SHARD

PACKAGE = Path(services.__file__).parents[1]
MUTATING = ("CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "SNAPSHOT", "PAUSE", "RESET", "UNPIN", "PEER")


def test_table_has_exactly_the_services_and_two_users_more() -> None:
    assert set(SERVICES) == set(services.SERVICES)
    assert set(permissions()) == {user_of(service) for service in SERVICES} | {"operator", "bootstrap"}


def test_table_has_exactly_the_streams_and_consumers_that_exist() -> None:
    names = {spec.name for spec in TOPOLOGY.streams(max_tasks=1)}
    assert {TOPOLOGY.stream(kind) for kind in STREAMS} == names
    durables = (
        TOPOLOGY.task_durable(POOL),
        TOPOLOGY.rollout_durable(ENVIRONMENT),
        TOPOLOGY.trajectory_durable(SHARD),
    )
    assert {TOPOLOGY.stream(kind) for kind in CONSUMERS} == {durable.stream for durable in durables}
    for durable, name in zip(durables, CONSUMERS.values(), strict=True):
        assert name in ("*", durable.name)


@pytest.mark.parametrize("service", SERVICES)
def test_service_publishes_only_events_that_it_may(service: str) -> None:
    """A refused event is lost without an error, so the kinds in its code are compared."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (PACKAGE / service).rglob("*.py"))
    assert set(re.findall(r'bus\.event\(\s*"([a-z_]+)"', code)) <= set(SERVICES[service].events)


def test_only_the_bootstrap_user_changes_streams_and_consumers() -> None:
    for user, allowed in permissions().items():
        mutating = {
            subject
            for subject in allowed.publish
            if subject.startswith("$JS.API.") and any(f".{call}" in subject for call in MUTATING)
        }
        if user == "admission":
            # The bound of the actors' consumer; the server holds the call to this consumer and its filter.
            assert mutating == {"$JS.API.CONSUMER.CREATE.TASKS-{run}.actors-default.tg.{run}.task.default"}
        else:
            assert bool(mutating) == (user == "bootstrap"), user
        assert not any(
            "DELETE" in subject or "PURGE" in subject or ">" in subject for subject in mutating
        ) or (user == "bootstrap")
        assert not any("DIRECT.GET" in subject for subject in allowed.publish)
