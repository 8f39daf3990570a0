"""Client of the inference service: one stream of steps."""

import asyncio

import grpc

from tidegate.core.errors import RecordError, UnavailableError
from tidegate.v1 import inference_service_pb2 as pb
from tidegate.v1.inference_service_pb2_grpc import InferenceServiceStub
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.convert import tree_from_proto, version_from_proto
from tidegate.wire.vector_step import ActedStep, ActingPolicy, ActOpening, ActStep, StepLayout

SERVICE = "inference"
# A stream that reaches it ends, and its actor opens the next one. A lost peer is noticed by the connection's keepalive.
STREAM_DEADLINE_S = 3600.0


class InferenceStream:
    """An open stream. One task may ``send`` while another one receives."""

    def __init__(self, channel: grpc.aio.Channel, layout: StepLayout) -> None:
        """Nothing is sent before ``open``. ``channel``: shared; its owner closes it."""
        self._call = InferenceServiceStub(channel).Act(timeout=STREAM_DEADLINE_S)
        self._layout = layout

    async def open(self, opening: ActOpening) -> None:
        """Say who asks.

        Raises:
            UnavailableError: the service does not answer; open another stream.
        """
        message = pb.ActOpening(
            run_id=opening.run_id,
            instance=opening.instance,
            num_envs=opening.num_envs,
            observations=[
                pb.ObservationTensor(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
                for tensor in opening.observations
            ],
            memory_size=opening.memory_size,
            outputs_size=opening.outputs_size,
        )
        await self._write(pb.ActRequest(opening=message))

    async def send(self, step: ActStep) -> None:
        """Ask for one step.

        Raises:
            UnavailableError: the stream ended.
        """
        await self._write(
            pb.ActRequest(
                number=step.number, seed=step.seed, observations=step.observations, memory=step.memory
            )
        )

    async def receive(self) -> ActedStep | ActingPolicy | None:
        """The next message; None once the service ended the stream, as it does when it drains.

        Raises:
            BackpressureError: the service has no place for another stream.
            RecordError: the service refused what was sent, or its message cannot be read.
            UnavailableError: the connection broke.
        """
        with remote_errors(SERVICE):
            message = await self._call.read()
        if not isinstance(message, pb.ActResponse):
            return None
        if message.number:
            return self._layout.acted(
                message.number,
                version_from_proto(message.version),
                actions=message.actions,
                logprobs=message.logprobs,
                memory=message.memory,
                outputs=message.outputs,
            )
        if not message.policy.version.lineage:
            raise RecordError("A message of the inference service holds neither an answer nor a policy")
        return ActingPolicy(
            version_from_proto(message.policy.version), tree_from_proto(message.policy.lineages)
        )

    def close(self) -> None:
        """End the stream now; closing it twice is fine."""
        self._call.cancel()

    async def _write(self, request: pb.ActRequest) -> None:
        try:
            with remote_errors(SERVICE):
                await self._call.write(request)
        except asyncio.InvalidStateError as error:  # grpc.aio's answer once the stream has ended
            raise UnavailableError(f"{SERVICE}: the stream has ended") from error
