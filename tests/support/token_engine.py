"""A token engine without a network: each token follows from the sample and from all tokens before it.

So a rollout that was stopped and resumed can be compared with one that was not.
"""

import asyncio

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.core.curriculum import uniform_fraction
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.records import PolicySnapshot, Task
from tidegate.models.char_tokenizer import ALPHABET, NUM_SPECIALS, CharTokenizer

STOP_SHARE = 0.05


class ScriptedTokenEngine:
    """Writes one token of each continuation every ``token_s`` seconds; its next token ends it by ``stop_share``.

    The version of a token is that of the policy served when it was written. ``hold_at``: continuations stop growing
    at so many tokens, until it is raised; None lets them grow.
    """

    def __init__(
        self,
        control: EngineControl,
        *,
        slots: int = 64,
        context_length: int = 4096,
        token_s: float = 0.0,
        stop_share: float = STOP_SHARE,
    ) -> None:
        """Nothing is written before there is a policy."""
        self.tokenizer = CharTokenizer()
        self.context_length = context_length
        self.token_s = token_s
        self.stop_share = stop_share
        self.hold_at: int | None = None
        # Names of the samples that are held, and of those that came to an end.
        self.held: set[str] = set()
        self.ended: set[str] = set()
        self.requests: list[TokenRequest] = []
        # As many of the next calls fail as if the engine had lost its server.
        self.failures = 0
        self._control = control
        self._places = asyncio.Semaphore(slots)

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Every policy fits."""

    def check_task(self, task: Task) -> None:
        """Whether there is anything to write."""
        if task.sampler.max_new_tokens < 1 or not task.prompt:
            raise RecordError(f"Task {task.task_id} asks for nothing")

    async def run(self) -> None:
        """Until it is to stop."""
        while not self._control.stop:
            self._serve()
            await asyncio.sleep(0.01)

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        """One token after the other."""
        self.requests.append(request)
        if len(request.context) + request.sampler.max_new_tokens > self.context_length:
            raise RecordError(f"Request {request.request_id} does not fit the context")
        # The sample's own name, without the number of the request.
        name = request.request_id.partition("/")[0]
        async with self._places:
            while len(written.tokens) < request.sampler.max_new_tokens:
                await asyncio.sleep(self.token_s)
                if self.failures:
                    self.failures -= 1
                    raise UnavailableError("The scripted engine lost its server")
                if self._control.stop:
                    raise UnavailableError("The scripted engine stops")
                if self.hold_at is not None and len(written.tokens) >= self.hold_at:
                    self.held.add(name)
                    await asyncio.sleep(0.001)
                    continue
                self.held.discard(name)
                snapshot = self._serve()
                if snapshot is None:
                    continue
                token, logprob = self._next(name, [*request.context, *written.tokens])
                written.append([token], [logprob], snapshot.version)
                if token in request.stop_ids:
                    self.ended.add(name)
                    return "stop"
        self.ended.add(name)
        return "length"

    async def close(self) -> None:
        """Holds nothing."""

    def _next(self, name: str, context: list[int]) -> tuple[int, float]:
        draw = uniform_fraction(name, *context)
        logprob = -float(uniform_fraction("logprob", name, *context))
        if draw < self.stop_share:
            return min(self.tokenizer.stop_ids), logprob
        return NUM_SPECIALS + int(draw * len(ALPHABET)), logprob

    def _serve(self) -> PolicySnapshot | None:
        newest = self._control.newest
        if newest is not None and newest is not self._control.serving:
            self._control.swapped(newest, seconds=0.0)
        return newest
