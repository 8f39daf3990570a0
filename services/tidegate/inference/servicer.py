"""The gRPC face of the inference service."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from tidegate.catalogue import inference as statistics
from tidegate.core.errors import BackpressureError, TidegateError
from tidegate.inference.loops import Inference
from tidegate.inference.state import RefusedError
from tidegate.inference.streams import ActingStream
from tidegate.runtime.rpc import Registration
from tidegate.runtime.service import ServiceContext
from tidegate.v1 import inference_service_pb2 as pb
from tidegate.v1.inference_service_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)
from tidegate.wire.convert import tree_to_proto, version_to_proto
from tidegate.wire.vector_step import ActedStep, ActingPolicy, ActOpening, ActStep, StepTensor

SERVICE_NAME = "tidegate.v1.InferenceService"
# An actor opens its stream with the call.
OPENING_DEADLINE_S = 10.0

_Context = aio.ServicerContext[Any, Any]


class InferenceServicer(InferenceServiceServicer):
    """Streams of steps."""

    def __init__(self, context: ServiceContext, inference: Inference, *, idle_s: float) -> None:
        """``idle_s``: as ``inference.idle_s``."""
        self._context = context
        self._inference = inference
        self._idle_s = idle_s

    def registration(self) -> Registration:
        """How the lifecycle adds it to the server."""
        return Registration(add=add_InferenceServiceServicer_to_server, servicer=self, name=SERVICE_NAME)

    async def Act(
        self, request_iterator: AsyncIterator[pb.ActRequest], context: _Context
    ) -> AsyncIterator[pb.ActResponse]:
        """One stream, until its actor or the service ends it."""
        try:
            stream = self._inference.open(await _opening(request_iterator))
        except TidegateError as error:
            self._count(error)
            raise
        reading = asyncio.create_task(self._read(stream, request_iterator))
        try:
            async for message in stream.outgoing(idle_s=self._idle_s):
                yield _response(message)
        finally:
            reading.cancel()
            self._inference.close(stream)

    async def _read(self, stream: ActingStream, requests: AsyncIterator[pb.ActRequest]) -> None:
        """Hand each step to the loop; one that is refused, or that fails, ends the stream."""
        try:
            async for request in requests:
                step = ActStep(request.number, request.seed, request.observations, request.memory)
                self._inference.ask(stream, step)
        except Exception as error:  # else the stream would stay open, and its actor wait
            self._count(error)
            stream.end(error)
        else:
            stream.end()

    def _count(self, error: Exception) -> None:
        full = isinstance(error, BackpressureError)
        if isinstance(error, RefusedError) or full:
            reason = error.reason if isinstance(error, RefusedError) else "full"
            self._context.stats.add(statistics.REFUSED_BECAUSE.member(reason))
            self._context.log.warning("step_refused", reason=reason, error=str(error))


async def _opening(requests: AsyncIterator[pb.ActRequest]) -> ActOpening:
    """The first message.

    Raises:
        RefusedError: it is no opening, or none came.
    """
    try:
        async with asyncio.timeout(OPENING_DEADLINE_S):
            first = await anext(aiter(requests), None)
    except TimeoutError as error:
        raise RefusedError("opening", f"A stream was not opened within {OPENING_DEADLINE_S:g} s") from error
    if first is None or not first.HasField("opening"):
        raise RefusedError("opening", "A stream does not start with its opening")
    opening = first.opening
    return ActOpening(
        run_id=opening.run_id,
        instance=opening.instance,
        num_envs=opening.num_envs,
        observations=tuple(
            StepTensor(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in opening.observations
        ),
        memory_size=opening.memory_size,
        outputs_size=opening.outputs_size,
    )


def _response(message: ActingPolicy | ActedStep) -> pb.ActResponse:
    if isinstance(message, ActingPolicy):
        policy = pb.ActingPolicy(
            version=version_to_proto(message.version), lineages=tree_to_proto(message.tree)
        )
        return pb.ActResponse(policy=policy)
    return pb.ActResponse(
        number=message.number,
        version=version_to_proto(message.version),
        actions=message.actions.tobytes(),
        logprobs=message.logprobs.tobytes(),
        memory=message.memory.tobytes(),
        outputs=message.outputs.tobytes(),
    )
