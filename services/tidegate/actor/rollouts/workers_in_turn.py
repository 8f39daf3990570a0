"""The environment workers of a run as one: calls go to them in turn, and on to the others while one is away."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import EnvironmentClient

WorkerT = TypeVar("WorkerT")
AnswerT = TypeVar("AnswerT")


class WorkersInTurn(Generic[WorkerT]):
    """Each call begins at the worker after the one at which the call before it began."""

    def __init__(self, workers: Sequence[WorkerT], *, first: int = 0) -> None:
        """``workers``: at least one. ``first``: whom the first call goes to, so that actors begin apart."""
        self._workers = workers
        self._turn = itertools.count(first)

    async def ask(
        self,
        call: Callable[[WorkerT], Awaitable[AnswerT]],
        *,
        note: Callable[[TidegateError], None] = lambda _error: None,
    ) -> AnswerT:
        """The answer of the first worker that gives one; each is asked once. ``note`` is told why one gave none.

        Raises:
            TidegateError: no worker answers, or one of them refuses the call.
        """
        failure: TidegateError = UnavailableError("No environment worker was asked")
        first, count = next(self._turn), len(self._workers)
        for number in range(first, first + count):
            try:
                return await call(self._workers[number % count])
            except TidegateError as error:
                if not error.retryable:
                    raise
                note(error)
                failure = error
        raise failure


def environment_workers(context: ServiceContext) -> list[EnvironmentClient]:
    """All environment workers of a run."""
    count = len(context.settings.addresses["environment"])
    return [EnvironmentClient(context.channel("environment", index)) for index in range(count)]
