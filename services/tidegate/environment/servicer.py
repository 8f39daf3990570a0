"""The environment's gRPC service: score now, sessions of environments, and what the run's environment observes."""

from typing import Any

from grpc.aio import ServicerContext

from tidegate.core.errors import RecordError
from tidegate.environment.describing import EnvironmentAnswer
from tidegate.environment.judgements import why_failed
from tidegate.environment.rewards import Rewards
from tidegate.environment.sessions import SessionTable
from tidegate.environment.state import AnsweredProblem, OnError, ProblemOf, resolve_failure
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.rpc import Registration
from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1.environment_service_pb2_grpc import (
    EnvironmentServiceServicer,
    add_EnvironmentServiceServicer_to_server,
)
from tidegate.wire.bounds import SEED_MAX, check_name, check_number
from tidegate.wire.descriptions import description_to_proto

# More would keep the event loop from its heartbeats; callers send several calls.
SCORES_MAX = 8192
# As many as an episode may have turns.
REPLAY_MAX = 1024


class EnvironmentServicer(EnvironmentServiceServicer):
    """Thin over its parts; their errors carry the status of the call."""

    def __init__(
        self,
        rewards: Rewards,
        sessions: SessionTable,
        description: EnvironmentAnswer,
        *,
        on_error: OnError,
        problem_of: ProblemOf | None = None,
    ) -> None:
        """``problem_of``: the problem of an environment as the environment itself wrote it; None: as it came."""
        self._problem_of = problem_of
        self._on_error: OnError = on_error
        self._rewards = rewards
        self._sessions = sessions
        self._description = description

    async def Score(self, request: pb.ScoreRequest, context: ServicerContext[Any, Any]) -> pb.ScoreResponse:
        """Rewards in the order of the items; where ``on_error`` drops, the caller is told which have none."""
        check_name(request.env_id, "env_id")
        if len(request.items) > SCORES_MAX:
            raise RecordError(
                f"{len(request.items)} completions in one call", fix=f"send at most {SCORES_MAX}"
            )
        answers = [
            AnsweredProblem(
                Problem(item.prompt_id, item.prompt, item.answer, item.curriculum_bin), item.completion
            )
            for item in request.items
        ]
        response = pb.ScoreResponse()
        for judgement in await self._rewards.judge(request.env_id, answers):
            score = resolve_failure(judgement, on_error=self._on_error)
            if score is None:
                response.results.add(reward=0.0, log=f"verifier failed: {why_failed(judgement)}", failed=True)
            else:
                response.results.add(reward=score.reward, components=score.components, log=score.log)
        return response

    async def Reset(self, request: pb.ResetRequest, context: ServicerContext[Any, Any]) -> pb.ResetResponse:
        """Open a session, and replay the actions of the request."""
        check_name(request.env_id, "env_id")
        check_number(request.seed, "seed", least=0, most=SEED_MAX)
        if len(request.actions) > REPLAY_MAX:
            raise RecordError(f"{len(request.actions)} actions to replay", fix=f"send at most {REPLAY_MAX}")
        problem = None
        if request.prompt:
            problem = Problem(request.prompt_id, request.prompt, request.answer, request.curriculum_bin)
            if self._problem_of is not None:
                problem = self._problem_of(request.env_id, problem)
        session_id, observation = await self._sessions.open(
            request.env_id, seed=request.seed, problem=problem, actions=list(request.actions)
        )
        return pb.ResetResponse(session_id=session_id, observation=observation)

    async def Step(self, request: pb.StepRequest, context: ServicerContext[Any, Any]) -> pb.StepResponse:
        """One step of a session."""
        step = await self._sessions.step(request.session_id, action=request.action)
        response = pb.StepResponse(
            observation=step.observation,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            components=step.components,
            log=step.log,
        )
        for call in step.tool_calls:
            response.tool_calls.add(
                name=call.name,
                arguments=call.arguments,
                result=call.result,
                started_at_s=call.started_at_s,
                finished_at_s=call.finished_at_s,
            )
        return response

    async def Close(self, request: pb.CloseRequest, context: ServicerContext[Any, Any]) -> pb.CloseResponse:
        """End a session; idempotent."""
        await self._sessions.close(request.session_id)
        return pb.CloseResponse()

    async def DescribeEnvironment(
        self, request: pb.DescribeEnvironmentRequest, context: ServicerContext[Any, Any]
    ) -> pb.DescribeEnvironmentResponse:
        """What the environment of the run's segments observes and accepts."""
        return description_to_proto(await self._description.get())

    def registration(self) -> Registration:
        """Add the service to a gRPC server."""
        return Registration(add_EnvironmentServiceServicer_to_server, self, "tidegate.v1.EnvironmentService")
