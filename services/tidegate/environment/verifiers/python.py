"""A function of the user's own as a verifier: ``my_rewards.py:score``, in child processes."""

from tidegate.environment.judgements import Judgement
from tidegate.environment.own_code.pool import OwnCodePool, OwnCodeSettings
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.settings import PythonSettings
from tidegate.runtime.own_code.references import resolve


class PythonVerifier:
    """Fulfils ``port.Verifier``."""

    def __init__(self, settings: PythonSettings, *, folder: str) -> None:
        """``folder``: of the run file.

        Raises:
            ConfigError: there is no such code.
        """
        self._pool = OwnCodePool(
            resolve(settings.reference, kind="verifiers", folder=folder),
            OwnCodeSettings(
                num_processes=settings.processes,
                deadline_s=settings.deadline_s,
                start_deadline_s=settings.start_deadline_s,
                memory_bytes=settings.memory_bytes,
            ),
        )

    async def start(self) -> None:
        """Load the code.

        Raises:
            ConfigError: it cannot be loaded; the message names file and line.
        """
        await self._pool.start()

    async def score(self, problem: Problem, completion: str) -> Judgement:
        """The verdict, or a failure with file and line."""
        return await self._pool.score(problem, completion)

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()
