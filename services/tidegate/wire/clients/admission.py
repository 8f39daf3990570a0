"""Client of admission."""

import grpc
import msgspec

from tidegate.core.admission import Flow, Limits
from tidegate.core.errors import RecordError
from tidegate.core.slo import CONDITIONS, Breach, Condition, Direction, Slo, Verdict
from tidegate.v1 import admission_service_pb2 as pb
from tidegate.v1.admission_service_pb2_grpc import AdmissionServiceStub
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors

SERVICE = "admission"


class BottleneckReport(msgspec.Struct, frozen=True):
    """The bottleneck with an explanation, the recommended fix and the signals behind it.

    ``recommendation``: how many actors to run, and why; empty where admission recommends nothing. ``problems``: what
    went wrong in actors' environments, newest first.
    """

    bottleneck: str
    sentence: str
    fix: str
    signals: dict[str, float]
    recommendation: str = ""
    problems: list[str] = []


class CompletionReport(msgspec.Struct, frozen=True):
    """How far the end of a run is: the targets that end it, and the one that held.

    ``reached_at_s``: seconds since the epoch. ``complete``: the learner wrote its last checkpoint.
    """

    targets: list[str]
    reached: str = ""
    reached_at_s: float = 0.0
    complete: bool = False


class AdmissionClient:
    """Typed calls to admission."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = AdmissionServiceStub(channel)

    async def limits(self) -> tuple[Limits, Flow]:
        """The limits in force and the work in flight."""
        with remote_errors(SERVICE):
            response = await self._stub.GetLimits(pb.GetLimitsRequest(), timeout=DEADLINE_S)
        limits = Limits(
            max_lag=response.limits.max_lag,
            batch_size=response.limits.batch_size,
            max_running=response.limits.max_running,
            paused=response.limits.paused,
            reason=response.limits.reason,
        )
        return limits, Flow(running=response.running, in_flight=response.in_flight)

    async def set_paused(self, *, paused: bool, reason: str, by: str = "") -> None:
        """Stop or resume admission; desired state, idempotent. ``by``: who asks, to be shown."""
        request = pb.SetPausedRequest(paused=paused, reason=reason, by=by)
        with remote_errors(SERVICE):
            await self._stub.SetPaused(request, timeout=DEADLINE_S)

    async def diagnose(self) -> BottleneckReport:
        """The answer of ``tidegate explain``."""
        with remote_errors(SERVICE):
            response = await self._stub.Diagnose(pb.DiagnoseRequest(), timeout=DEADLINE_S)
        return BottleneckReport(
            response.bottleneck,
            response.sentence,
            response.fix,
            dict(response.signals),
            response.recommendation,
            list(response.problems),
        )

    async def completion(self) -> CompletionReport:
        """The end of a run in a cluster."""
        with remote_errors(SERVICE):
            response = await self._stub.GetCompletion(pb.GetCompletionRequest(), timeout=DEADLINE_S)
        return CompletionReport(
            list(response.targets), response.reached, response.reached_at_s, response.checkpointed
        )

    async def slos(self) -> list[Verdict]:
        """The answer of ``tidegate slo``.

        Raises:
            RecordError: admission has another version and sends an unknown answer.
        """
        with remote_errors(SERVICE):
            response = await self._stub.GetSlos(pb.GetSlosRequest(), timeout=DEADLINE_S)
        return [_verdict_of(message) for message in response.slos]


def _verdict_of(message: pb.SloVerdict) -> Verdict:
    direction: Direction = "at_least" if message.direction == "at_least" else "at_most"
    breach = message.last_breach
    return Verdict(
        slo=Slo(
            name=message.name,
            bound=message.bound,
            target=message.target,
            window_s=message.window_s,
            direction=direction,
            unit=message.unit,
        ),
        condition=_condition_of(message.condition),
        value=message.value if message.HasField("value") else None,
        good=message.good,
        bad=message.bad,
        missing=message.missing,
        budget_left=message.budget_left,
        burn_long=message.burn_long,
        burn_short=message.burn_short,
        last_breach=Breach(breach.at_s, breach.value if breach.HasField("value") else None, breach.cause)
        if message.HasField("last_breach")
        else None,
    )


def _condition_of(text: str) -> Condition:
    for condition in CONDITIONS:
        if condition == text:
            return condition
    raise RecordError(
        f"Admission reports the unknown condition {text!r} of an objective",
        why="this version knows no such condition",
        fix="use the version of the running platform",
    )
