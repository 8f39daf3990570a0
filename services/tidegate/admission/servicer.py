"""The gRPC face of admission: limits, a pause, objectives, the answer to "why is it slow", and KEDA's questions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc

from tidegate.admission.external_scaler import METRIC, TARGET_PER_REPLICA, ExternalScaler
from tidegate.admission.loops import Admission
from tidegate.admission.state import Pause
from tidegate.core.slo import Verdict
from tidegate.runtime.rpc import Registration
from tidegate.v1 import admission_service_pb2 as pb
from tidegate.v1 import admission_service_pb2_grpc as pb_grpc
from tidegate.v1 import externalscaler_pb2 as keda
from tidegate.v1 import externalscaler_pb2_grpc as keda_grpc

NAME = "tidegate.v1.AdmissionService"
KEDA_NAME = "externalscaler.ExternalScaler"

Call = grpc.aio.ServicerContext[Any, Any]


class AdmissionServicer(pb_grpc.AdmissionServiceServicer):
    """Answers from the last window."""

    def __init__(self, admission: Admission) -> None:
        """``admission`` holds what is known."""
        self._admission = admission

    async def GetLimits(self, request: pb.GetLimitsRequest, context: Call) -> pb.GetLimitsResponse:
        """The limits in force, and what the task queue last said is under way."""
        limits, flow = self._admission.decision().limits, self._admission.flow()
        return pb.GetLimitsResponse(
            limits=pb.AdmissionLimits(
                max_lag=limits.max_lag,
                batch_size=limits.batch_size,
                max_running=limits.max_running,
                paused=limits.paused,
                reason=limits.reason,
            ),
            running=flow.running,
            in_flight=flow.in_flight,
        )

    async def SetPaused(self, request: pb.SetPausedRequest, context: Call) -> pb.SetPausedResponse:
        """Stop or resume admission. Idempotent; held until it is changed, across a crash."""
        await self._admission.set_paused(Pause(paused=request.paused, reason=request.reason))
        return pb.SetPausedResponse()

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Call) -> pb.DiagnoseResponse:
        """Who holds the loop up, from which signals, and the one fix."""
        diagnosis, signals = self._admission.diagnosis()
        return pb.DiagnoseResponse(
            bottleneck=diagnosis.bottleneck,
            sentence=diagnosis.sentence,
            fix=diagnosis.fix,
            signals=signals.numbers(),
            recommendation=self._admission.scaling.sentence(),
        )

    async def GetSlos(self, request: pb.GetSlosRequest, context: Call) -> pb.GetSlosResponse:
        """How each objective stands."""
        return pb.GetSlosResponse(slos=[_message_of(verdict) for verdict in self._admission.slos()])

    def registration(self) -> Registration:
        """How the server of this service adds it."""
        return Registration(pb_grpc.add_AdmissionServiceServicer_to_server, self, NAME)


class ExternalScalerServicer(keda_grpc.ExternalScalerServicer):
    """KEDA's questions; the ScaledObject that asks makes no difference."""

    def __init__(self, scaler: ExternalScaler) -> None:
        """``scaler`` has the answers."""
        self._scaler = scaler

    async def IsActive(self, request: keda.ScaledObjectRef, context: Call) -> keda.IsActiveResponse:
        """Whether there should be any actor."""
        return keda.IsActiveResponse(result=self._scaler.wanted() > 0)

    async def StreamIsActive(
        self, request: keda.ScaledObjectRef, context: Call
    ) -> AsyncGenerator[keda.IsActiveResponse]:
        """The same, whenever it changes, until the caller leaves."""
        async with aclosing(self._scaler.activity()) as changes:
            async for active in changes:
                yield keda.IsActiveResponse(result=active)

    async def GetMetricSpec(self, request: keda.ScaledObjectRef, context: Call) -> keda.GetMetricSpecResponse:
        """The metric to follow; the same in every mode, so that a ScaledObject is valid before the mode is set."""
        spec = keda.MetricSpec(
            metricName=METRIC, targetSize=round(TARGET_PER_REPLICA), targetSizeFloat=TARGET_PER_REPLICA
        )
        return keda.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: keda.GetMetricsRequest, context: Call) -> keda.GetMetricsResponse:
        """How many actors there should be."""
        wanted = self._scaler.wanted()
        value = keda.MetricValue(metricName=METRIC, metricValue=wanted, metricValueFloat=float(wanted))
        return keda.GetMetricsResponse(metricValues=[value])

    def registration(self) -> Registration:
        """How the server of admission adds it."""
        return Registration(keda_grpc.add_ExternalScalerServicer_to_server, self, KEDA_NAME)


def _message_of(verdict: Verdict) -> pb.SloVerdict:
    slo, breach = verdict.slo, verdict.last_breach
    return pb.SloVerdict(
        name=slo.name,
        unit=slo.unit,
        bound=slo.bound,
        direction=slo.direction,
        target=slo.target,
        window_s=slo.window_s,
        condition=verdict.condition,
        value=verdict.value,
        good=verdict.good,
        bad=verdict.bad,
        missing=verdict.missing,
        budget_left=verdict.budget_left,
        burn_long=verdict.burn_long,
        burn_short=verdict.burn_short,
        last_breach=pb.SloBreach(at_s=breach.at_s, value=breach.value, cause=breach.cause)
        if breach
        else None,
    )
