"""A run in a cluster ends at its target: admission pauses, the learner writes a checkpoint, and pods go (issue 18)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.call_credentials import accepted
from tests.support.kubernetes import SETS, FakeApi
from tests.support.reports import Services
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig, KubernetesConfig
from tidegate.admission.main import build
from tidegate.catalogue import admission as statistics
from tidegate.catalogue import learner as learner_stats
from tidegate.core import completion
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.runtime.backup_state import expect_backups, expect_no_backups
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.live_settings import LiveSections
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_board import StatsBoard
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1 import learner_service_pb2_grpc as pb_grpc
from tidegate.wire.clients.admission import AdmissionClient, CompletionReport
from tidegate.wire.convert import version_to_proto

pytestmark = pytest.mark.integration

ACTORS, LEARNER = "t-actor", "t-learner"
CONFIG = AdmissionConfig(
    tick_s=0.05,
    window_s=2.0,
    kubernetes=KubernetesConfig(sync_s=0.05, relist_s=0.1, deadline_s=1.0, backoff_s_max=0.2, status_s=0.2),
)


class FakeLearner:
    """Answers for its own counters, and counts what it is asked for."""

    def __init__(self) -> None:
        self.board = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
        self.num_checkpoints = 0
        self.reasons: list[str] = []

    async def Checkpoint(
        self, request: pb.CheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CheckpointResponse:
        self.num_checkpoints += 1
        return pb.CheckpointResponse(version=version_to_proto(PolicyVersion(LineageName("main"), 10)))

    async def Complete(
        self, request: pb.CompleteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CompleteResponse:
        self.reasons.append(request.reason)
        return pb.CompleteResponse()

    def __getattr__(self, name: str) -> Any:
        if name in ("GetProgress", "Rollback", "ReadCheckpoint"):
            return None
        raise AttributeError(name)

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncGenerator[None]:
        own = Registration(pb_grpc.add_LearnerServiceServicer_to_server, self, "tidegate.v1.LearnerService")
        lifecycle = LifecycleServicer(self.board, Drain(), SystemClock()).registration()
        server = RpcServer([own, lifecycle], accepted())
        await server.start(address)
        try:
            yield
        finally:
            await server.stop(grace_s=0.1)


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.deployment(ACTORS, 3)
    api.stateful_set(LEARNER, 1)
    api.training_run("t")
    return api


@pytest.fixture
def make(
    tmp_path: Path, nats: Broker, bus: Bus, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ServiceContext]:
    monkeypatch.setattr(completion, "QUIET_S", 0.2)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig)
    for name, value in {
        "TIDEGATE_KUBERNETES": "1",
        "TIDEGATE_NAMESPACE": "rl",
        "TIDEGATE_RELEASE": "t",
        "TIDEGATE_POD_NAME": "t-admission-0",
        "TIDEGATE_ACTOR_DEPLOYMENTS": ACTORS,
        "TIDEGATE_LEARNER": LEARNER,
        "TIDEGATE_CRD": "1",
        "KUBECONFIG": str(kubeconfig),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=2)

    def made(target: str) -> ServiceContext:
        return make_context("admission", msgspec.structs.replace(settings, until=target), bus=bus)

    return made


@pytest.fixture
def services() -> Services:
    """A learner that claims version 10 on the broker, and an actor."""
    services = Services()
    services.actors["t-actor-0"] = {"serving_step": 10.0}
    return services


def change_target(context: ServiceContext, target: str) -> None:
    """As the loop does that follows the run file."""
    context.live.take(msgspec.structs.replace(context.live.sections, until=target))


async def report(context: ServiceContext) -> CompletionReport:
    return await AdmissionClient(channel_of_test(context, "admission")).completion()


async def test_a_run_ends_at_its_target_stays_ended_and_goes_on_with_another_one(
    make: Callable[..., ServiceContext], api: FakeApi, services: Services
) -> None:
    learner = FakeLearner()
    learner.board.set(learner_stats.VERSION_STEP, 10.0)
    context = make("version_step>=10")
    address = context.settings.addresses["learner"][0]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(api.serving())
        await stack.enter_async_context(learner.serving(address))
        async with running(build, CONFIG, context), services.reporting(context):
            await until(lambda: api.replicas(LEARNER, kind=SETS) == 0)
            assert api.replicas(ACTORS) == 0
            assert learner.num_checkpoints == 1
            found = await report(context)
            assert found.targets == ["version_step>=10"]
            assert (found.reached, found.complete) == ("version_step>=10", True)
            limits, _ = await AdmissionClient(channel_of_test(context, "admission")).limits()
            assert limits.paused
            assert limits.reason == "the run is complete: version_step>=10 holds"
            await until(lambda: api.conditions("t").get("Completed") == ("True", "TargetReached"))
            assert api.status("t")["phase"] == "Completed"
            await until(lambda: "Completed" in api.reasons())
            assert api.conditions("t")["Ready"] == ("True", "Completed")
            # The chart renders one learner, and so does each upgrade.
            api.scale(LEARNER, 1, manager="helm")
            await until(lambda: api.replicas(LEARNER, kind=SETS) == 0)
        restarted = make("version_step>=10")
        async with running(build, CONFIG, restarted):
            await until(lambda: "the run is complete" in pause_of(restarted))
            change_target(restarted, "version_step>=20")
            await until(lambda: api.replicas(LEARNER, kind=SETS) == 1)
            await until(lambda: api.replicas(ACTORS) == 3)
            await until(lambda: pause_of(restarted) == "")
            assert (await report(restarted)).reached == ""
    assert learner.num_checkpoints == 1


async def test_the_learner_stays_until_the_last_backup_is_made(
    make: Callable[..., ServiceContext], api: FakeApi, services: Services
) -> None:
    learner = FakeLearner()
    learner.board.set(learner_stats.VERSION_STEP, 10.0)
    context = make("version_step>=10")
    folder = Path(context.settings.data_dir)
    expect_backups(folder, place="s3://bucket/run", every_s=600.0, now_s=context.clock.now_s())
    async with (
        api.serving(),
        learner.serving(context.settings.addresses["learner"][0]),
        running(build, CONFIG, context),
        services.reporting(context),
    ):
        await until(lambda: api.replicas(ACTORS) == 0)
        expect_no_backups(folder, but_one=True)
        await asyncio.sleep(5 * CONFIG.kubernetes.sync_s)
        assert api.replicas(LEARNER, kind=SETS) == 1
        expect_no_backups(folder)
        await until(lambda: api.replicas(LEARNER, kind=SETS) == 0)


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
async def test_a_learner_that_is_a_job_is_told_to_end_after_the_actors(
    kind: str,
    make: Callable[..., ServiceContext],
    api: FakeApi,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEGATE_LEARNER_KIND", kind)
    del api.objects[f"{SETS}/{LEARNER}"]
    learner = FakeLearner()
    learner.board.set(learner_stats.VERSION_STEP, 10.0)
    context = make("version_step>=10")
    async with (
        api.serving(),
        learner.serving(context.settings.addresses["learner"][0]),
        running(build, CONFIG, context),
        services.reporting(context),
    ):
        await until(lambda: bool(learner.reasons))
        assert learner.reasons == ["the run is complete: version_step>=10 holds"]
        assert api.replicas(ACTORS) == 0
        await asyncio.sleep(5 * CONFIG.kubernetes.sync_s)
        assert len(learner.reasons) == 1, "it is told once"
        # Killed before it could end: its Job has made another one.
        services.learner_started_at_s = 2.0
        await until(lambda: len(learner.reasons) == 2)
        services.learner_started_at_s = None
        change_target(context, "version_step>=20")
        await until(lambda: api.replicas(ACTORS) == 3)
        await until(lambda: "LearnerEnded" in api.reasons())
        assert f"kubectl delete {kind.lower()} {LEARNER}, then helm upgrade" in api.notes("LearnerEnded")
    assert not [path for _, path, _ in api.requests if LEARNER in path], "admission has no access to it"


def pause_of(context: ServiceContext) -> str:
    return context.stats.snapshot(at_s=0.0).labels.get("pause", "")


async def test_what_others_publish_on_the_broker_ends_no_run(
    make: Callable[..., ServiceContext], api: FakeApi, services: Services
) -> None:
    learner = FakeLearner()
    learner.board.set(learner_stats.VERSION_STEP, 9.0)
    context = make("version_step>=10")
    async with (
        api.serving(),
        learner.serving(context.settings.addresses["learner"][0]),
        running(build, CONFIG, context),
        services.reporting(context),
    ):
        await until(lambda: context.stats.value(statistics.DECISIONS) > 20)
        assert (await report(context)).reached == ""
        assert api.replicas(ACTORS) == 3
        learner.board.set(learner_stats.VERSION_STEP, 10.0)
        await until(lambda: api.replicas(ACTORS) == 0)


async def test_a_run_without_a_target_is_told_apart_from_one_that_has_not_met_it(
    make: Callable[..., ServiceContext], api: FakeApi, services: Services
) -> None:
    context = make("")
    async with api.serving(), running(build, CONFIG, context), services.reporting(context):
        assert (await report(context)).targets == []
        change_target(context, "version_step>=11")
        assert (await report(context)).targets == ["version_step>=11"]
        api.training_run("t", stop={"maxVersions": 12})
        found: list[str] = []
        while len(found) < 2:
            found = (await report(context)).targets
        assert found == ["version_step>=11", "version_step>=12"]
    assert LiveSections().until is None
