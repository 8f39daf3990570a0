"""Client of the environment service."""

from collections.abc import Sequence

import grpc
import msgspec

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import ToolCall
from tidegate.core.spaces import EnvironmentDescription
from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors
from tidegate.wire.descriptions import description_from_proto

SERVICE = "environment"
# Tools and verifiers have deadlines of their own, and a judge with retries takes minutes. The connection detects a lost
# worker long before.
SCORE_DEADLINE_S = 300.0
SESSION_DEADLINE_S = 300.0


class Completion(msgspec.Struct, frozen=True):
    """A completion to be scored against its problem."""

    prompt_id: str
    prompt: str
    answer: str
    completion: str
    curriculum_bin: str = "all"


class RewardedCompletion(msgspec.Struct, frozen=True):
    """The verifier's answer for one completion.

    ``failed``: a verifier failed, and the run drops such completions; the reward means nothing, ``log`` says why.
    """

    reward: float
    components: dict[str, float]
    log: str
    failed: bool = False


class EpisodeProblem(msgspec.Struct, frozen=True):
    """The problem of an episode of a text environment, from its task."""

    prompt_id: str
    prompt: str
    answer: str
    curriculum_bin: str = "all"


class EnvironmentStep(msgspec.Struct, frozen=True):
    """The result of one step of a session.

    ``observation``: the reply's text in a text environment, else JSON. ``tool_calls``: those of this step.
    ``components`` and ``log`` come with the last step and cover the whole episode.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    tool_calls: tuple[ToolCall, ...] = ()
    components: dict[str, float] = {}
    log: str = ""


class EnvironmentClient:
    """Typed calls to the environment service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = EnvironmentServiceStub(channel)

    async def score(
        self, env_id: str, completions: Sequence[Completion], *, deadline_s: float = SCORE_DEADLINE_S
    ) -> list[RewardedCompletion]:
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
            response = await self._stub.Score(request, timeout=deadline_s)
        return [
            RewardedCompletion(item.reward, dict(item.components), item.log, item.failed)
            for item in response.results
        ]

    async def reset(
        self,
        env_id: str,
        *,
        seed: int,
        problem: EpisodeProblem | None = None,
        actions: Sequence[str] = (),
        deadline_s: float = SESSION_DEADLINE_S,
    ) -> tuple[str, str]:
        """Open a session; returns its id and the last observation.

        ``problem``: of a text environment; without one it draws a training problem by ``seed``. ``actions``: those of a
        resumed episode, without the one that ended it; they are replayed. The observation is the
        text of the opening or of the last reply in a text environment, else JSON.

        Raises:
            BackpressureError: every slot is taken; one frees when a session ends or idles out.
            ConflictError: a replayed action ended the episode; restart it.
        """
        request = pb.ResetRequest(env_id=env_id, seed=seed, actions=actions)
        if problem is not None:
            request.prompt_id = problem.prompt_id
            request.prompt = problem.prompt
            request.answer = problem.answer
            request.curriculum_bin = problem.curriculum_bin
        with remote_errors(SERVICE):
            response = await self._stub.Reset(request, timeout=deadline_s)
        return response.session_id, response.observation

    async def step(
        self, session_id: str, *, action: str, deadline_s: float = SESSION_DEADLINE_S
    ) -> EnvironmentStep:
        """One step of a session; the action is a turn's text in a text environment, else JSON.

        Raises:
            NotFoundError: no such session (any more): open another with the actions so far.
            RecordError: the action is none of this environment; the session stays.
            DeadlineError: it took too long; the session is gone, or will idle out.
        """
        with remote_errors(SERVICE):
            response = await self._stub.Step(
                pb.StepRequest(session_id=session_id, action=action), timeout=deadline_s
            )
        return EnvironmentStep(
            observation=response.observation,
            reward=response.reward,
            terminated=response.terminated,
            truncated=response.truncated,
            tool_calls=tuple(
                ToolCall(call.name, call.arguments, call.result, call.started_at_s, call.finished_at_s)
                for call in response.tool_calls
            ),
            components=dict(response.components),
            log=response.log,
        )

    async def close(self, session_id: str) -> None:
        """End a session; ending it twice is fine."""
        with remote_errors(SERVICE):
            await self._stub.Close(pb.CloseRequest(session_id=session_id), timeout=DEADLINE_S)

    async def describe(self, *, deadline_s: float = DEADLINE_S) -> EnvironmentDescription:
        """What the environment of the run's segments observes and accepts.

        Raises:
            UnavailableError: it is still being opened, or the service does not answer; ask again.
            ConfigError: it cannot be described: its space, its arguments or its code.
            NotFoundError: there is no such environment, or what it needs is not installed.
        """
        try:
            with remote_errors(SERVICE):
                response = await self._stub.DescribeEnvironment(
                    pb.DescribeEnvironmentRequest(), timeout=deadline_s
                )
        except RecordError as error:
            raise ConfigError(error.what) from error
        return description_from_proto(response)
