"""The port of further verifiers, besides the tasks' scorers: one completion a call; a verifier may be unavailable."""

from typing import Protocol

from tidegate.core.errors import BackpressureError
from tidegate.environment.judgements import Judgement
from tidegate.environment.tasks.port import Problem


class VerifierBusyError(BackpressureError):
    """A verifier asks for a later request, ``retry_after_s`` from now; 0 leaves the moment to the caller."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        """``what``: the verifier that is busy."""
        super().__init__(what, fix="ask again later, or lower max_concurrent")
        self.retry_after_s = retry_after_s


class Verifier(Protocol):
    """Scores completions; the verifier's deadline ends each try."""

    async def start(self) -> None:
        """Be ready to score.

        Raises:
            ConfigError: it never will be, as it is configured.
        """
        ...

    async def score(self, problem: Problem, completion: str) -> Judgement:
        """The verdict, between 0 and 1 where the verifier has a scale. The try frees its place when it ends.

        A failure may be returned, where more is known of it than an error says, or raised.

        Raises:
            TidegateError: there is none; ``retryable``: whether a retry can help.
        """
        ...

    async def close(self) -> None:
        """Release what is held; no request follows."""
        ...
