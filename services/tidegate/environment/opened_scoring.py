"""Verdicts on answers outside of any run: task and verifiers are called as in a run, in the same child processes."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.judgements import Judgement
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.own_code.tasks import OwnTasks, own_task_of
from tidegate.environment.parts import bounds_of, close_verifiers, open_verifiers
from tidegate.environment.sandbox.port import IsolatedSandbox
from tidegate.environment.sandbox.registry import open_sandbox
from tidegate.environment.scoring import Scorer, checked, failure_of
from tidegate.environment.state import TASK, AnsweredProblem, ScoreCache
from tidegate.environment.tasks.registry import get_task
from tidegate.environment.verifiers.port import Verifier
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference


class Verdicts:
    """See ``open_verdicts``. ``own``: the task, where it is one of the user's own; ``bounds``: of its children."""

    def __init__(
        self,
        env: str,
        config: EnvironmentConfig,
        *,
        own: OwnReference | None,
        bounds: OwnCodeSettings,
        sandbox: IsolatedSandbox,
        scorer: Scorer,
        verifiers: dict[str, Verifier],
    ) -> None:
        self.own = own
        self.bounds = bounds
        self.sandbox = sandbox
        self._env = env
        self._config = config
        self._scorer = scorer
        self._verifiers = verifiers

    async def parts(self, answer: AnsweredProblem, *, task: Judgement | None = None) -> dict[str, Judgement]:
        """The judgement of each verifier by its name, ``task`` among them; ``task``: where it was judged already."""
        found: dict[str, Judgement] = {}
        if TASK in self._config.weights():
            found[TASK] = task or (await self._scorer.judge(self._env, [answer]))[0]
        for name, verifier in self._verifiers.items():
            found[name] = await _asked(partial(verifier.score, answer.problem, answer.completion))
        return found


@asynccontextmanager
async def open_verdicts(
    workload: WorkloadConfig, config: EnvironmentConfig, *, folder: str, num_processes: int
) -> AsyncGenerator[Verdicts]:
    """Open what judges the answers of one text environment. ``folder``: of the run file.

    ``num_processes``: children of own code, each of which judges one answer at a time.

    Raises:
        ConfigError: something cannot be loaded or opened.
    """
    bounds = bounds_of(config, num_processes=num_processes)
    own = own_task_of(workload, folder=folder)
    async with AsyncExitStack() as stack:
        tasks = OwnTasks(bounds, own={} if own is None else {workload.env: own})
        stack.push_async_callback(tasks.close)
        sandbox = open_sandbox(
            config.isolation, config.sandbox, max_runs=1, environ=os.environ, log=structlog.get_logger()
        )
        stack.callback(sandbox.close)
        verifiers = await open_verifiers(config, sandbox, folder=folder)
        stack.push_async_callback(close_verifiers, verifiers)
        scorer = Scorer(
            get_task,
            ScoreCache(num_max=config.cache_entries),
            SystemClock(),
            deadline_s=config.score_deadline_s,
            own=tasks,
        )
        yield Verdicts(
            workload.env,
            config,
            own=own,
            bounds=bounds,
            sandbox=sandbox,
            scorer=scorer,
            verifiers=verifiers,
        )


async def _asked(ask: Callable[[], Awaitable[object]]) -> Judgement:
    try:
        return checked(await ask())
    except Exception as error:  # a verifier is third-party code
        return failure_of(error)
