"""Client of the environment service."""

from collections.abc import Sequence

import grpc
import msgspec

from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors

SERVICE = "environment"


class Completion(msgspec.Struct, frozen=True):
    """A completion to be scored against its problem."""

    prompt_id: str
    prompt: str
    answer: str
    completion: str
    curriculum_bin: str = "all"


class RewardedCompletion(msgspec.Struct, frozen=True):
    """The verifier's answer for one completion."""

    reward: float
    components: dict[str, float]
    log: str


class EnvironmentStep(msgspec.Struct, frozen=True):
    """What one step of a session returned; the observation is JSON text."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool


class EnvironmentClient:
    """Typed calls to the environment service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """The channel is shared and stays the caller's to close."""
        self._stub = EnvironmentServiceStub(channel)

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        """Rewards in the order of the completions."""
        request = pb.ScoreRequest(
            env_id=env_id,
            items=[
                pb.ScoreItem(
                    prompt_id=item.prompt_id,
                    prompt=item.prompt,
                    answer=item.answer,
                    completion=item.completion,
                    curriculum_bin=item.curriculum_bin,
                )
                for item in completions
            ],
        )
        with remote_errors(SERVICE):
            response = await self._stub.Score(request, timeout=DEADLINE_S)
        return [RewardedCompletion(item.reward, dict(item.components), item.log) for item in response.results]

    async def reset(self, env_id: str, *, seed: int) -> tuple[str, str]:
        """Open a session; returns its id and the first observation as JSON text.

        Raises:
            BackpressureError: every slot is taken; one frees when a session ends or idles out.
        """
        with remote_errors(SERVICE):
            response = await self._stub.Reset(pb.ResetRequest(env_id=env_id, seed=seed), timeout=DEADLINE_S)
        return response.session_id, response.observation

    async def step(self, session_id: str, *, action: str) -> EnvironmentStep:
        """One step of a session; the action is JSON text."""
        with remote_errors(SERVICE):
            response = await self._stub.Step(
                pb.StepRequest(session_id=session_id, action=action), timeout=DEADLINE_S
            )
        return EnvironmentStep(response.observation, response.reward, response.terminated, response.truncated)

    async def close(self, session_id: str) -> None:
        """End a session; ending it twice is fine."""
        with remote_errors(SERVICE):
            await self._stub.Close(pb.CloseRequest(session_id=session_id), timeout=DEADLINE_S)
