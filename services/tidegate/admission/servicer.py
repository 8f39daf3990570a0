"""Admission over gRPC: limits, pause, objectives, the bottleneck diagnosis, and KEDA's external scaler."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc

from tidegate.admission.external_scaler import METRIC, TARGET_PER_REPLICA, ExternalScaler
from tidegate.admission.loops import Admission
from tidegate.core.slo import Verdict
from tidegate.runtime.rpc import Registration
from tidegate.v1 import admission_service_pb2 as pb
from tidegate.v1 import admission_service_pb2_grpc as pb_grpc
from tidegate.v1 import externalscaler_pb2 as keda
from tidegate.v1 import externalscaler_pb2_grpc as keda_grpc
from tidegate.wire.bounds import DETAIL_CHARS_MAX, check_name

NAME = "tidegate.v1.AdmissionService"
KEDA_NAME = "externalscaler.ExternalScaler"

Call = grpc.aio.ServicerContext[Any, Any]


class AdmissionServicer(pb_grpc.AdmissionServiceServicer):
    """Serves the state of the last window."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def GetLimits(self, request: pb.GetLimitsRequest, context: Call) -> pb.GetLimitsResponse:
        """The limits in force, and the work in flight that the task queue reported last."""
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
        """Pause or resume admission. Idempotent; kept until changed, across restarts."""
        check_name(request.reason, "The reason", chars_max=DETAIL_CHARS_MAX)
        check_name(request.by, "The name of who asks")
        await self._admission.set_paused(paused=request.paused, reason=request.reason, by=request.by)
        return pb.SetPausedResponse()

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Call) -> pb.DiagnoseResponse:
        """The bottleneck, the signals that it is attributed from, and the one fix."""
        diagnosis, signals = self._admission.diagnosis()
        return pb.DiagnoseResponse(
            bottleneck=diagnosis.bottleneck,
            sentence=diagnosis.sentence,
            fix=diagnosis.fix,
            signals=signals.numbers(),
            recommendation=self._admission.scaling.sentence(),
            problems=self._admission.problems(),
        )

    async def GetSlos(self, request: pb.GetSlosRequest, context: Call) -> pb.GetSlosResponse:
        """The verdict on each objective."""
        return pb.GetSlosResponse(slos=[_message_of(verdict) for verdict in self._admission.slos()])

    async def GetCompletion(
        self, request: pb.GetCompletionRequest, context: Call
    ) -> pb.GetCompletionResponse:
        """Whether the run reached its target, and how far its end is."""
        completion = self._admission.completion
        return pb.GetCompletionResponse(
            targets=[str(target) for target in completion.targets()],
            reached=completion.state.target,
            reached_at_s=completion.state.reached_at_s,
            checkpointed=completion.state.checkpointed,
        )

    def registration(self) -> Registration:
        """How the service's gRPC server registers this servicer."""
        return Registration(pb_grpc.add_AdmissionServiceServicer_to_server, self, NAME)


class ExternalScalerServicer(keda_grpc.ExternalScalerServicer):
    """KEDA's external scaler; every ScaledObject gets the same values."""

    def __init__(self, scaler: ExternalScaler) -> None:
        self._scaler = scaler

    async def IsActive(self, request: keda.ScaledObjectRef, context: Call) -> keda.IsActiveResponse:
        """Whether at least one actor is recommended."""
        return keda.IsActiveResponse(result=self._scaler.wanted() > 0)

    async def StreamIsActive(
        self, request: keda.ScaledObjectRef, context: Call
    ) -> AsyncGenerator[keda.IsActiveResponse]:
        """``IsActive`` as a stream: each change, until the caller disconnects."""
        async with aclosing(self._scaler.activity()) as changes:
            async for active in changes:
                yield keda.IsActiveResponse(result=active)

    async def GetMetricSpec(self, request: keda.ScaledObjectRef, context: Call) -> keda.GetMetricSpecResponse:
        """The metric's name and target; equal in every mode: a ScaledObject is valid before the mode is set."""
        spec = keda.MetricSpec(
            metricName=METRIC, targetSize=round(TARGET_PER_REPLICA), targetSizeFloat=TARGET_PER_REPLICA
        )
        return keda.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: keda.GetMetricsRequest, context: Call) -> keda.GetMetricsResponse:
        """The recommended number of actors."""
        wanted = self._scaler.wanted()
        value = keda.MetricValue(metricName=METRIC, metricValue=wanted, metricValueFloat=float(wanted))
        return keda.GetMetricsResponse(metricValues=[value])

    def registration(self) -> Registration:
        """How admission's gRPC server registers this servicer."""
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
