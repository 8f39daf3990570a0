"""Recommendations of a running admission, as an operator, KEDA and a client see them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.reports import Services
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig
from tidegate.admission.main import build
from tidegate.catalogue import admission as statistics
from tidegate.core.errors import UnauthenticatedError
from tidegate.core.scaling import Mode, ScalingConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.rpc import open_channel
from tidegate.runtime.service import ServiceContext
from tidegate.v1 import externalscaler_pb2 as pb
from tidegate.v1.externalscaler_pb2_grpc import ExternalScalerStub
from tidegate.wire.clients.admission import AdmissionClient

pytestmark = pytest.mark.integration

# No windows: each observation counts at once. By one actor at a time, however long the learner seems to wait between
# two reports that a busy machine delays; the second one never reports, so there is no third.
SCALING = ScalingConfig(
    min_replicas=1,
    max_replicas=9,
    step_s=1.0,
    step_replicas=1,
    stabilise_out_s=0.0,
    stabilise_in_s=0.0,
    settle_s=0.0,
)
SCALED_OBJECT = pb.ScaledObjectRef(
    name="actors", namespace="rl", scalerMetadata={"scalerAddress": "t-admission:7700"}
)


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus) -> Callable[[], ServiceContext]:
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=1)
    return lambda: make_context("admission", settings, bus=bus)


def config(mode: Mode, scaling: ScalingConfig = SCALING) -> AdmissionConfig:
    return AdmissionConfig(tick_s=0.05, window_s=2.0, scaling=msgspec.structs.replace(scaling, mode=mode))


@pytest.fixture
def services() -> Services:
    """One actor without a pause, and a learner that waits half of its time."""
    services = Services()
    services.actors["actor-0"] = {}
    return services


async def eventually(answer: Callable[[], Awaitable[float]], wanted: float) -> None:
    async with asyncio.timeout(60.0):
        while await answer() != wanted:
            await asyncio.sleep(0.05)


def keda(context: ServiceContext) -> ExternalScalerStub:
    return ExternalScalerStub(channel_of_test(context, "admission"))


async def test_keda_gets_the_recommended_number_as_a_metric_of_one_per_replica(
    make: Callable[[], ServiceContext], services: Services
) -> None:
    async with running(build, config("external"), make()) as context, services.reporting(context):
        scaler = keda(context)
        await until(lambda: context.stats.value(statistics.DECISIONS) > 0)
        (spec,) = (await scaler.GetMetricSpec(SCALED_OBJECT)).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("tidegate-actors-wanted", 1, 1.0)
        assert (await scaler.IsActive(SCALED_OBJECT)).result

        async def wanted() -> float:
            request = pb.GetMetricsRequest(scaledObjectRef=SCALED_OBJECT, metricName=spec.metricName)
            (value,) = (await scaler.GetMetrics(request)).metricValues
            assert value.metricName == spec.metricName
            assert value.metricValue == value.metricValueFloat
            return value.metricValueFloat

        await eventually(wanted, 2.0)
        await until(lambda: context.stats.value(statistics.SCALING_RECOMMENDED) == 2.0)


async def test_a_caller_without_a_credential_reads_the_recommendation_and_does_nothing_else(
    make: Callable[[], ServiceContext],
) -> None:
    """The chart's `networkPolicy.scalerFrom` opens admission's port as a whole; calls need tokens."""
    async with running(build, config("external"), make()) as context:
        await until(lambda: context.stats.value(statistics.DECISIONS) > 0)
        channel = open_channel(context.settings.addresses["admission"][0], None)
        try:
            assert (await ExternalScalerStub(channel).IsActive(SCALED_OBJECT)).result
            with pytest.raises(UnauthenticatedError):
                await AdmissionClient(channel).set_paused(paused=True, reason="forged")
            limits, _ = await AdmissionClient(channel_of_test(context, "admission")).limits()
            assert not limits.paused
        finally:
            await channel.close()


async def test_a_stream_of_activity_reports_the_start_and_end_of_a_pause_that_scales_to_zero(
    make: Callable[[], ServiceContext],
) -> None:
    scaling = msgspec.structs.replace(SCALING, zero_when_paused=True)
    async with running(build, config("external", scaling), make()) as context:
        stream = aiter(keda(context).StreamIsActive(SCALED_OBJECT))
        async with asyncio.timeout(60.0):
            assert (await anext(stream)).result
            await AdmissionClient(channel_of_test(context, "admission")).set_paused(
                paused=True, reason="night"
            )
            assert not (await anext(stream)).result
            assert not (await keda(context).IsActive(SCALED_OBJECT)).result
            await AdmissionClient(channel_of_test(context, "admission")).set_paused(paused=False, reason="")
            assert (await anext(stream)).result


@pytest.mark.parametrize("mode", ["observe", "advise", "controller"])
async def test_keda_gets_an_error_in_other_modes_instead_of_zero(
    make: Callable[[], ServiceContext], mode: Mode
) -> None:
    async with running(build, config(mode), make()) as context:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda(context).IsActive(SCALED_OBJECT)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert mode in (refused.value.details() or "")
        assert len((await keda(context).GetMetricSpec(SCALED_OBJECT)).metricSpecs) == 1


async def test_advice_is_a_sentence_of_the_diagnosis_and_observing_gives_none(
    make: Callable[[], ServiceContext], services: Services
) -> None:
    async with running(build, config("advise"), make()) as context, services.reporting(context):
        client = AdmissionClient(channel_of_test(context, "admission"))
        async with asyncio.timeout(60.0):
            while "run 2 actors instead of 1" not in (
                recommendation_text := (await client.diagnose()).recommendation
            ):
                await asyncio.sleep(0.05)
        assert "actor-bound: actors idle 0%, the learner " in recommendation_text
    async with running(build, config("observe"), make()) as context, services.reporting(context):
        client = AdmissionClient(channel_of_test(context, "admission"))
        await until(lambda: context.stats.value(statistics.SCALING_CURRENT) == 1.0)
        assert (await client.diagnose()).recommendation == ""
        assert "scaling_recommended" not in context.stats.snapshot(at_s=0.0).values
