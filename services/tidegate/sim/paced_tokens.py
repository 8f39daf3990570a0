"""A token engine whose tokens are the policies that chose them, at the pace of its actor.

A continuation is ``POSITIONS`` tokens, each the node of the policy that was served then; the last one is its answer
as well. So the versions that a trajectory records can be compared with the policies that wrote it, even when resumed.
"""

import asyncio
from collections.abc import Sequence

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.core.curriculum import uniform_fraction
from tidegate.core.errors import UnavailableError
from tidegate.core.records import PolicySnapshot, Task
from tidegate.sim.oracle import ANSWER_UNIT, Oracle
from tidegate.sim.paced_engine import POSITIONS, RIGHT_SHARE, STRAGGLER_SLOWNESS, Pace

# The sum of no problem of the simulation.
WRONG = 1000
NO_POLICY_WAIT_S = 0.01


class SumTokenizer:
    """Prompts of the simulation (``7+1=``) as the one number in them; the answer is in the last token."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """None: the engine knows when it has answered."""
        return frozenset()

    def encode_prompt(self, prompt: str) -> list[int]:
        """The number of the prompt."""
        return [int(prompt.partition("+")[0])]

    def encode_reply(self, text: str) -> list[int]:
        """Nothing: these rollouts have one turn."""
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        """The answer at the end."""
        return str(tokens[-1] // ANSWER_UNIT)


class PacedTokenEngine:
    """Writes as many continuations as it is asked for; each takes the time of ``pace``."""

    def __init__(self, pace: Pace, control: EngineControl, oracle: Oracle) -> None:
        self.tokenizer = SumTokenizer()
        self.context_length = 2 * POSITIONS
        self._pace = pace
        self._control = control
        self._oracle = oracle

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Every policy fits."""

    def check_task(self, task: Task) -> None:
        """Every task fits."""

    async def run(self) -> None:
        """Wait until the engine must stop."""
        while not self._control.stop:  # noqa: ASYNC110  # the flag has no event
            await asyncio.sleep(NO_POLICY_WAIT_S)

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        """Continue after the context, up to the answer."""
        name = request.request_id.partition("/")[0]
        first, *before = request.context
        is_right = uniform_fraction(name, "right") < RIGHT_SHARE
        answer = ANSWER_UNIT * (first + 1 if is_right else WRONG)
        for position in range(len(before), POSITIONS):
            await asyncio.sleep(self._pause_s(name))
            snapshot = await self._served()
            node = self._oracle.serves(snapshot.version, snapshot.tensors)
            is_last = position == POSITIONS - 1
            written.append([node + answer if is_last else node], [0.0], snapshot.version)
        return "stop"

    async def close(self) -> None:
        """Nothing to release."""

    def _pause_s(self, name: str) -> float:
        """Seconds of the next token; read at each, so that rollouts speed up when the fault ends."""
        straggles = uniform_fraction(name, "straggles") < self._pace.stragglers
        slowness = STRAGGLER_SLOWNESS if straggles else 1.0
        return self._pace.rollout_s * (0.5 + uniform_fraction(name, "length")) * slowness / POSITIONS

    async def _served(self) -> PolicySnapshot:
        while True:
            if self._control.stop:
                raise UnavailableError("The engine stops")
            newest = self._control.newest
            if newest is not None:
                if newest is not self._control.serving:
                    self._control.swapped(newest, seconds=0.0)
                return newest
            await asyncio.sleep(NO_POLICY_WAIT_S)
