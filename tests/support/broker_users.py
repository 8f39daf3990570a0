"""Who may do what at a broker, tried on a real server with every user; the test's own table, apart from the code's."""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from nats.aio.client import Client

from tidegate.core.ids import RunId, TaskId
from tidegate.wire.subjects import POOL, SHARD, Topology

RUN = "cartpole-t"
TOPOLOGY = Topology(RunId(RUN))
ENVIRONMENT = "e"
STREAMS = TOPOLOGY.streams(max_tasks=16, environment=ENVIRONMENT)
CONSUMERS = (
    TOPOLOGY.task_consumer(POOL, ack_wait_s=30.0, max_running=4),
    TOPOLOGY.rollout_consumer(ENVIRONMENT, ack_wait_s=30.0, max_running=4),
    TOPOLOGY.trajectory_consumer(SHARD),
)
SERVICES = (
    "task-queue",
    "actor",
    "inference",
    "environment",
    "trajectory-store",
    "learner",
    "weight-distribution",
    "admission",
)
USERS = (*SERVICES, "operator", "bootstrap")
_ALL = frozenset(SERVICES)

# Subjects by their publishers.
PUBLISHERS: Mapping[str, frozenset[str]] = {
    TOPOLOGY.tasks(POOL): frozenset({"task-queue"}),
    TOPOLOGY.rollouts(ENVIRONMENT): frozenset({"actor"}),
    TOPOLOGY.trajectories(SHARD): frozenset({"actor", "environment"}),
    # Of no consumer.
    TOPOLOGY.tasks("other"): frozenset(),
    TOPOLOGY.trajectories(SHARD + 1): frozenset(),
    TOPOLOGY.progress(TaskId("t1")): frozenset({"actor"}),
    TOPOLOGY.policy("default"): frozenset({"weight-distribution"}),
    TOPOLOGY.control("task_queue"): frozenset({"admission"}),
    TOPOLOGY.event("evaluation"): frozenset({"actor"}),
    TOPOLOGY.event("evaluation_begun"): frozenset({"task-queue"}),
    TOPOLOGY.event("checkpoint_corrupt"): frozenset({"learner"}),
    TOPOLOGY.event("rolled_back"): frozenset({"learner"}),
    TOPOLOGY.event("lease_expired"): frozenset({"trajectory-store"}),
    TOPOLOGY.event("limits"): frozenset({"admission"}),
    TOPOLOGY.event("slo"): frozenset({"admission"}),
    TOPOLOGY.event("made-up"): frozenset(),
    **{TOPOLOGY.quarantine(service.replace("-", "_")): frozenset({service}) for service in SERVICES},
    **{TOPOLOGY.stats(service.replace("-", "_")): frozenset({service}) for service in SERVICES},
    TOPOLOGY.stats("supervisor"): frozenset({"operator"}),
    f"{TOPOLOGY.stats('learner')}.0": frozenset(),
    "tg.another-run.ver.default": frozenset(),
    "mine": frozenset(),
    "_INBOX_learner.x": frozenset(),
    "$SYS.REQ.SERVER.PING": frozenset(),
}
# Subjects by who may subscribe to them.
FOLLOWERS: Mapping[str, frozenset[str]] = {
    TOPOLOGY.tasks(POOL): frozenset(),
    TOPOLOGY.rollouts(ENVIRONMENT): frozenset(),
    TOPOLOGY.trajectories(SHARD): frozenset(),
    TOPOLOGY.progress(TaskId("t1")): frozenset(),
    TOPOLOGY.quarantine("actor"): frozenset(),
    TOPOLOGY.policy("default"): _ALL - {"environment"},
    TOPOLOGY.control("task_queue"): frozenset({"task-queue"}),
    TOPOLOGY.event("*"): _ALL | {"operator"},
    TOPOLOGY.stats("*"): _ALL | {"operator"},
    f"tg.{RUN}.>": frozenset(),
    "$JS.API.>": frozenset(),
    ">": frozenset(),
    **{f"_INBOX_{user}.x": frozenset({user}) for user in USERS},
    "_INBOX.x": frozenset(),
}
# Streams whose last message a user may request.
READERS: Mapping[str, frozenset[str]] = {
    "POLICY": _ALL - {"environment"} | {"operator"},
    "CONTROL": frozenset({"task-queue", "admission", "operator"}),
    "PROGRESS": frozenset({"actor", "operator"}),
    "EVENTS": frozenset({"admission", "weight-distribution", "operator"}),
}
CONSUMED = {"TASKS": "actor", "ROLLOUTS": "environment", "TRAJECTORIES": "trajectory-store"}
STREAM_CALLS = (
    *("CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.GET", "MSG.DELETE"),
    *("PEER.REMOVE", "LEADER.STEPDOWN"),
)
CONSUMER_CALLS = (
    *("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT", "PAUSE", "RESET", "UNPIN"),
    "LEADER.STEPDOWN",
)


def stream_calls() -> dict[str, frozenset[str]]:
    """Every call of JetStream about a stream, by the users that may send it."""
    calls: dict[str, frozenset[str]] = {
        "$JS.API.STREAM.CREATE.MINE": frozenset(),
        "$JS.API.STREAM.NAMES": frozenset(),
        "$JS.API.STREAM.LIST": frozenset(),
        "$JS.API.INFO": frozenset(),
        "$JS.API.ACCOUNT.PURGE.TIDEGATE": frozenset(),
        "$JS.API.META.LEADER.STEPDOWN": frozenset(),
    }
    for spec in STREAMS:
        kind = spec.name.removesuffix(f"-{RUN}")
        allowed = {
            "CREATE": frozenset({"bootstrap"}),
            "UPDATE": frozenset({"bootstrap"}),
            "INFO": frozenset(USERS),
            "MSG.GET": READERS.get(kind, frozenset({"operator"})),
        }
        for call in STREAM_CALLS:
            calls[f"$JS.API.STREAM.{call}.{spec.name}"] = allowed.get(call, frozenset())
        # The broker would publish stored bytes at whatever subject the request names as its reply.
        calls[f"$JS.API.DIRECT.GET.{spec.name}"] = frozenset()
        calls[f"$JS.API.DIRECT.GET.{spec.name}.{spec.subjects[0].replace('*', 'x')}"] = frozenset()
        calls[f"$JS.API.CONSUMER.LIST.{spec.name}"] = frozenset({"admission", "operator"})
        calls[f"$JS.API.CONSUMER.NAMES.{spec.name}"] = frozenset()
    return calls


def consumer_calls() -> dict[str, frozenset[str]]:
    """Every call of JetStream about a consumer, by the users that may send it."""
    calls: dict[str, frozenset[str]] = {}
    for consumer in CONSUMERS:
        stream, name = consumer.durable.stream, consumer.durable.name
        kind = stream.removesuffix(f"-{RUN}")
        reader, tuner = CONSUMED[kind], {"admission"} if kind == "TASKS" else set[str]()
        allowed = {
            "CREATE": frozenset({"bootstrap"}),
            "DURABLE.CREATE": frozenset({"bootstrap"}),
            "INFO": frozenset({reader, "bootstrap", *tuner}),
            "MSG.NEXT": frozenset({reader}),
        }
        for call in CONSUMER_CALLS:
            calls[f"$JS.API.CONSUMER.{call}.{stream}.{name}"] = allowed.get(call, frozenset())
        calls[f"$JS.API.CONSUMER.CREATE.{stream}"] = frozenset()
        calls[f"$JS.API.CONSUMER.CREATE.{stream}.spy.{consumer.filter_subject}"] = frozenset({"bootstrap"})
        calls[f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{consumer.filter_subject}"] = frozenset(
            {"bootstrap", *tuner}
        )
        calls[f"$JS.ACK.{stream}.{name}.1.1.1.1.1"] = frozenset({reader})
    for kind in ("POLICY", "CONTROL", "PROGRESS", "EVENTS", "QUARANTINE"):
        for call in ("CREATE", "DURABLE.CREATE", "MSG.NEXT"):
            calls[f"$JS.API.CONSUMER.{call}.{TOPOLOGY.stream(kind)}.spy"] = frozenset()
    return calls


class User:
    """A bare connection that remembers what the server refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = Client()
        self._refused: set[str] = set()

    async def connect(self, url: str, *, password: str) -> None:
        """Connect with a password."""
        await self.client.connect(
            url,
            user=self.name,
            password=password,
            inbox_prefix=f"_INBOX_{self.name}",
            error_cb=self._on_error,
            connect_timeout=30,
        )

    async def _on_error(self, error: Exception) -> None:
        # The library gives the server's text in lower case.
        found = re.search(r'violation for (publish|subscription) to "([^"]*)"', str(error), re.IGNORECASE)
        if found is None:
            return  # the server was stopped
        self._refused.add(found[2].lower())

    async def close(self) -> None:
        """Disconnect."""
        await self.client.close()

    async def refused_to_publish(self, subjects: Iterable[str], body: bytes = b"") -> set[str]:
        """Publish to each subject; returns those that the server refused. A refusal comes before the flush's answer."""
        self._refused.clear()
        for subject in subjects:
            await self.client.publish(subject, body)
        return await self._refused_of(subjects)

    async def refused_to_subscribe(self, subjects: Iterable[str]) -> set[str]:
        """Subscribe to each subject; returns those that the server refused."""
        self._refused.clear()
        for subject in subjects:
            await cast("Any", self.client).subscribe(subject, cb=_ignore)  # typed in part
        return await self._refused_of(subjects)

    async def _refused_of(self, subjects: Iterable[str]) -> set[str]:
        await self._flush()
        assert self.client.stats["reconnects"] == 0, "what was refused before a reconnect is not known"
        return {subject for subject in subjects if subject.lower() in self._refused}

    async def ask(self, subject: str, body: object) -> dict[str, Any]:
        """JetStream's answer; an empty one where the server refused the request."""
        self._refused.clear()
        asked = asyncio.ensure_future(self.client.request(subject, json.dumps(body).encode(), timeout=60))
        while not asked.done():
            await self._flush()
            if subject.lower() in self._refused:
                asked.cancel()
                return {}
        return json.loads((await asked).data)

    async def _flush(self) -> None:
        """Return once the server has handled what was sent. The library's flush overtakes what it has yet to write."""
        while self.client.pending_data_size:
            await asyncio.sleep(0.001)
        await self.client.flush(timeout=60)


async def _ignore(_message: object) -> None:
    """Subscriptions are tried, not read."""


def wrongly_handled(
    user: str, refused: set[str], expected: Mapping[str, frozenset[str]]
) -> tuple[set[str], set[str]]:
    """(subjects that the user should have been refused, subjects that it should not have been refused)."""
    allowed = {subject for subject, users in expected.items() if user in users}
    return set(expected) - allowed - refused, refused & allowed


async def check_permissions(user: User) -> None:
    """Publish, subscribe and call as ``user`` what the tables above have, and nothing else; disconnects it."""
    for expected in (PUBLISHERS, stream_calls(), consumer_calls()):
        # A body that no call accepts: whether it may be sent is the question, and nothing shall change.
        refused = await user.refused_to_publish(expected, b"{")
        assert wrongly_handled(user.name, refused, expected) == (set(), set())
    refused = await user.refused_to_subscribe(FOLLOWERS)
    assert wrongly_handled(user.name, refused, FOLLOWERS) == (set(), set())
    await user.close()
