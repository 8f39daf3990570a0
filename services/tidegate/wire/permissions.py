"""The one table of permissions at the broker: which user may publish, receive, read and consume what.

A laptop's broker is configured from it (``launch.broker``), and so is the chart's (``make chart`` writes it to
``helm/tidegate/files/broker-permissions.json``). A user is a service; two more are no service:

- ``bootstrap`` creates and updates the streams and their consumers, and does nothing else. It is the only user
  that may: who may update a stream can seal it, empty it, or copy other subjects into it, and who may create a consumer
  chooses where its messages are delivered.
- ``operator`` reads: ``tidegate status`` and the other queries, ``helm test``. The supervisor reports as this user.

No user may delete or purge anything. Streams are read by JetStream's ``MSG.GET``, never by ``DIRECT.GET``: the broker
publishes the answer of a request to whatever subject the request names, and that of ``DIRECT.GET`` has the stored bytes
as its body, so that a user who may write one stream could write all of them.
"""

from collections.abc import Mapping

import msgspec

from tidegate.wire.subjects import POOL, SHARD

BOOTSTRAP = "bootstrap"
OPERATOR = "operator"
# The name under which the supervisor of a laptop's run reports.
SUPERVISOR = "supervisor"
# Replaced by the run's id.
RUN_PLACEHOLDER = "{run}"
STREAMS = ("TASKS", "ROLLOUTS", "TRAJECTORIES", "PROGRESS", "POLICY", "CONTROL", "EVENTS", "QUARANTINE")
# The streams with a durable consumer. The consumer of ROLLOUTS is named after the environment, and is the only one.
CONSUMERS: Mapping[str, str] = {
    "TASKS": f"actors-{POOL}",
    "ROLLOUTS": "*",
    "TRAJECTORIES": f"store-{SHARD}",
}
# The subjects of TASKS and of TRAJECTORIES. That of ROLLOUTS is named after the environment; the stream takes no other.
TASKS_SUBJECT, TRAJECTORIES_SUBJECT = f"task.{POOL}", f"traj.{SHARD}"


class ServicePermissions(msgspec.Struct, frozen=True):
    """One service's row, in subjects below ``tg.<run>.`` and names of streams without the run.

    ``publish``: subjects besides its statistics and its quarantine. ``events``: the kinds of events that it publishes.
    ``follow``: subjects besides everyone's statistics and events. ``read``: streams whose last messages it requests.
    ``consume``: the stream whose consumer it shares. ``bound``: the stream whose consumer's bound of unacknowledged
    messages it sets. ``watch``: whether it lists every stream's consumers.
    """

    publish: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    follow: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    consume: str = ""
    bound: str = ""
    watch: bool = False


SERVICES: Mapping[str, ServicePermissions] = {
    "task_queue": ServicePermissions(
        publish=(TASKS_SUBJECT,),
        events=("evaluation_begun",),
        follow=("ver.*", "ctl.task_queue"),
        read=("CONTROL", "POLICY"),
    ),
    "actor": ServicePermissions(
        publish=("roll.*", TRAJECTORIES_SUBJECT, "part.*"),
        events=("evaluation",),
        follow=("ver.*",),
        read=("POLICY", "PROGRESS"),
        consume="TASKS",
    ),
    "inference": ServicePermissions(follow=("ver.*",), read=("POLICY",)),
    "environment": ServicePermissions(publish=(TRAJECTORIES_SUBJECT,), consume="ROLLOUTS"),
    "trajectory_store": ServicePermissions(
        events=("lease_expired",), follow=("ver.*",), read=("POLICY",), consume="TRAJECTORIES"
    ),
    "learner": ServicePermissions(
        events=("checkpoint_corrupt", "rolled_back", "warmed_up"), follow=("ver.*",), read=("POLICY",)
    ),
    "weight_distribution": ServicePermissions(
        publish=("ver.*",), follow=("ver.*",), read=("POLICY", "EVENTS")
    ),
    "admission": ServicePermissions(
        publish=("ctl.*",),
        events=("limits", "pause", "settings", "slo"),
        follow=("ver.*",),
        read=("CONTROL", "POLICY", "EVENTS"),
        bound="TASKS",
        watch=True,
    ),
}


class UserPermissions(msgspec.Struct, frozen=True):
    """The subjects that one user may publish and subscribe to; every other one is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def of_run(self, run: str) -> "UserPermissions":
        """The same with the run's id in the place of the placeholder."""
        return UserPermissions(
            publish=tuple(subject.replace(RUN_PLACEHOLDER, run) for subject in self.publish),
            subscribe=tuple(subject.replace(RUN_PLACEHOLDER, run) for subject in self.subscribe),
        )


def user_of(service: str) -> str:
    """The user of a service: its name in a cluster."""
    return service.replace("_", "-")


def permissions() -> dict[str, UserPermissions]:
    """Every user's permissions, for a run whose id is still a placeholder."""
    users = {user_of(service): _of_service(service, row) for service, row in SERVICES.items()}
    users[OPERATOR] = _of_operator()
    users[BOOTSTRAP] = _of_bootstrap()
    return users


def _of_service(service: str, row: ServicePermissions) -> UserPermissions:
    publish = [*row.publish, f"stats.{service}", f"bad.{service}", *(f"evt.{kind}" for kind in row.events)]
    api = [*_seen_streams(), *(_last_of(stream) for stream in row.read)]
    if row.consume:
        stream, durable = row.consume, CONSUMERS[row.consume]
        api += [
            _api("CONSUMER.INFO", stream, durable),
            _api("CONSUMER.MSG.NEXT", stream, durable),
            f"$JS.ACK.{stream}-{RUN_PLACEHOLDER}.{durable}.>",
        ]
    if row.bound:
        durable = CONSUMERS[row.bound]
        # The server holds the request to this consumer and this filter, and makes no push consumer of a pull consumer.
        api += [
            _api("CONSUMER.INFO", row.bound, durable),
            _api("CONSUMER.CREATE", row.bound, f"{durable}.tg.{RUN_PLACEHOLDER}.{TASKS_SUBJECT}"),
        ]
    if row.watch:
        api += [_api("CONSUMER.LIST", stream) for stream in STREAMS]
    return _user(user_of(service), publish=publish, api=api, follow=("stats.*", "evt.*", *row.follow))


def _of_operator() -> UserPermissions:
    api = [*_seen_streams(), *(_last_of(stream) for stream in STREAMS)]
    api += [_api("CONSUMER.LIST", stream) for stream in STREAMS]
    return _user(OPERATOR, publish=(f"stats.{SUPERVISOR}",), api=api, follow=("stats.*", "evt.*"))


def _of_bootstrap() -> UserPermissions:
    api = [_api(f"STREAM.{verb}", stream) for stream in STREAMS for verb in ("INFO", "CREATE", "UPDATE")]
    for stream in CONSUMERS:
        api += [_api("CONSUMER.INFO", stream, "*"), _api("CONSUMER.DURABLE.CREATE", stream, "*")]
        api += [_api("CONSUMER.CREATE", stream, ">")]
    return _user(BOOTSTRAP, publish=(), api=api, follow=())


def _user(
    name: str, *, publish: tuple[str, ...] | list[str], api: list[str], follow: tuple[str, ...]
) -> UserPermissions:
    # A user receives only its own answers.
    return UserPermissions(
        publish=(*(f"tg.{RUN_PLACEHOLDER}.{subject}" for subject in publish), *api),
        subscribe=(f"_INBOX_{name}.>", *(f"tg.{RUN_PLACEHOLDER}.{subject}" for subject in follow)),
    )


def _seen_streams() -> list[str]:
    return [_api("STREAM.INFO", stream) for stream in STREAMS]


def _last_of(stream: str) -> str:
    return _api("STREAM.MSG.GET", stream)


def _api(call: str, stream: str, rest: str = "") -> str:
    return f"$JS.API.{call}.{stream}-{RUN_PLACEHOLDER}{'.' if rest else ''}{rest}"
