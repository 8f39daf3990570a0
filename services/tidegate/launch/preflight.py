"""The preflight of a run of segments: its environment is opened and its policy built before any service starts.

Consumes the run's plan; produces the description of its environment, or the sentence why the run cannot work; waits for
one process; unblocked by its end, or by ``DEADLINE_S``.
"""

import asyncio
import os
import sys

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.launch.environment_check import Answer, Described, EnvironmentQuestion, Refused
from tidegate.launch.guarded import SUPERVISOR_VARIABLE
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

# Environments with an engine of their own take a while to open; CartPole takes 0.4 s.
DEADLINE_S = 120.0
MODULE = "tidegate.launch.environment_check"


class PreflightError(ConfigError):
    """The environment of a run, its settings or the policy for it cannot work; no service was started for it."""


class Preflight:
    """One check in a process of its own; ``close`` it."""

    def __init__(self, process: asyncio.subprocess.Process, question: EnvironmentQuestion) -> None:
        """``start`` makes it."""
        self._process = process
        self._question = question

    @classmethod
    async def start(cls, workload: WorkloadConfig, policy: PolicyConfig | None) -> "Preflight":
        """Start the process; without a policy only the environment is checked."""
        # As of every process that the supervisor starts, so that the folder of the run is where modules are found.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())},
        )
        return cls(process, EnvironmentQuestion(workload, policy))

    async def result(self) -> Described:
        """The description.

        Raises:
            PreflightError: the environment, its settings or the policy cannot work; what they need may be missing.
        """
        env_id = self._question.workload.env
        try:
            answer, printed = await asyncio.wait_for(
                self._process.communicate(msgspec.msgpack.encode(self._question)), timeout=DEADLINE_S
            )
        except TimeoutError as error:
            raise PreflightError(
                f"Environment {env_id!r} did not open, reset and step within {DEADLINE_S:g} s",
                fix=f"correct what it waits for, then try it: tidegate env {env_id}",
            ) from error
        try:
            found: Answer = msgspec.msgpack.decode(answer, type=Answer)
        except msgspec.MsgspecError as error:
            lines = printed.decode(errors="replace").strip().splitlines()
            raise PreflightError(
                f"Environment {env_id!r} ended the process that tried it, with exit code {self._process.returncode}",
                why=lines[-1][:400] if lines else "",
                fix=f"correct its code, then try it: tidegate env {env_id}",
            ) from error
        if isinstance(found, Refused):
            raise PreflightError(found.what, why=found.why, fix=found.fix)
        return found

    async def close(self) -> None:
        """End the process if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def check_environment(workload: WorkloadConfig, policy: PolicyConfig | None) -> Described:
    """Start a check and wait for it.

    Raises:
        PreflightError: as ``Preflight.result``.
    """
    preflight = await Preflight.start(workload, policy)
    try:
        return await preflight.result()
    finally:
        await preflight.close()
