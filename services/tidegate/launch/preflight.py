"""The preflight of a run of segments: its environment is opened and its policy built before any service starts.

Consumes the run's plan; produces the description of its environment, or the sentence why the run cannot work; waits for
one process; unblocked by its end, or by ``DEADLINE_S``.
"""

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
from tempfile import TemporaryFile
from typing import BinaryIO, Protocol

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.launch import environment_check
from tidegate.launch.environment_check import Answer, Described, EnvironmentQuestion, Refused
from tidegate.launch.fork_server.preloading import begin_child, can_fork
from tidegate.launch.guarded import SUPERVISOR_VARIABLE
from tidegate.launch.inherited_environment import inherited
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.runtime.python_program import python_program

# Environments with an engine of their own take a while to open; CartPole takes 0.4 s.
DEADLINE_S = 120.0
# Of what the process printed, to find its last words.
TAIL_BYTES = 4096


class PreflightError(ConfigError):
    """The environment of a run, its settings or the policy for it cannot work; no service was started for it."""


class _CheckProcess(Protocol):
    """A child of this process; ``returncode`` is None until ``wait``."""

    returncode: int | None

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Preflight:
    """One check in a process of its own; ``close`` it."""

    def __init__(self, process: _CheckProcess, env_id: str, answers: BinaryIO, printed: BinaryIO) -> None:
        """``start`` makes it."""
        self._process = process
        self._env_id = env_id
        self._answers = answers
        self._printed = printed
        self._found: Described | None = None

    @classmethod
    def start(
        cls,
        workload: WorkloadConfig,
        policy: PolicyConfig | None,
        *,
        pass_env: tuple[str, ...] = (),
        files_dir: str = "",
    ) -> "Preflight":
        """Start the process; without a policy only the environment is checked.

        ``files_dir``: where its module is looked for besides the working directory.

        It is forked where that is safe, so that it does not load again what this process has loaded. It inherits what a
        service of a run does, and the variables ``pass_env``.
        """
        question = EnvironmentQuestion(workload, policy, files_dir)
        # A file instead of a pipe: a full pipe that is not read blocks its writer.
        printed = TemporaryFile()  # noqa: SIM115 (closed by ``close``)
        answers, theirs = os.pipe()
        with os.fdopen(theirs, "wb") as reply:
            start = _forked if can_fork() else _program
            process = start(question, pass_env, reply=reply, printed=printed)
        return cls(process, workload.env, os.fdopen(answers, "rb"), printed)

    def check(self) -> None:
        """Wait for nothing, and raise if the answer is there and is no.

        Raises:
            PreflightError: as ``result``.
        """
        if self._found is None and select.select([self._answers], [], [], 0.0)[0]:
            self._found = self._read(self._answers.read())

    async def result(self) -> Described:
        """The description.

        Raises:
            PreflightError: the environment, its settings or the policy cannot work; what they need may be missing.
        """
        if self._found is None:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    answer = await _read_to_end(self._answers)
            except TimeoutError as error:
                raise PreflightError(
                    f"Environment {self._env_id!r} did not open, reset and step within {DEADLINE_S:g} s",
                    fix=f"correct what it waits for, then try it: tidegate env {self._env_id}",
                ) from error
            self._found = self._read(answer)
        return self._found

    def close(self) -> None:
        """End the process if it still runs."""
        self._answers.close()
        self._printed.close()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def _read(self, answer: bytes) -> Described:
        exit_code = self._process.wait()  # it has closed the pipe, so it has ended
        try:
            found: Answer = msgspec.msgpack.decode(answer, type=Answer)
        except msgspec.MsgspecError as error:
            self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = self._printed.read().decode(errors="replace").strip().splitlines()
            raise PreflightError(
                f"Environment {self._env_id!r} ended the process that tried it, with exit code {exit_code}",
                why=lines[-1][:400] if lines else "",
                fix=f"correct its code, then try it: tidegate env {self._env_id}",
            ) from error
        if isinstance(found, Refused):
            raise PreflightError(found.what, why=found.why, fix=found.fix)
        return found


async def check_environment(
    workload: WorkloadConfig, policy: PolicyConfig | None, *, files_dir: str = ""
) -> Described:
    """Start a check and wait for it; ``files_dir``: as for ``Preflight.start``.

    Raises:
        PreflightError: as ``Preflight.result``.
    """
    preflight = Preflight.start(workload, policy, files_dir=files_dir)
    try:
        return await preflight.result()
    finally:
        preflight.close()


async def _read_to_end(file: BinaryIO) -> bytes:
    """Everything until the writer closes; the file is closed then."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    try:
        return await reader.read()
    finally:
        transport.close()


class _ForkedChild:
    """A fork of this process, as ``subprocess.Popen`` is a program."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self._pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _forked(
    question: EnvironmentQuestion, pass_env: tuple[str, ...], *, reply: BinaryIO, printed: BinaryIO
) -> _CheckProcess:
    supervisor_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return _ForkedChild(pid)
    try:
        # The collector of the child is not to write into what both processes share.
        gc.freeze()
        gc.enable()
        begin_child(supervisor_pid, pass_env, title="tidegate preflight")
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        environment_check.answer(question, reply)
    finally:
        # Whatever was raised, this copy of the supervisor goes no further.
        os._exit(1)


def _program(
    question: EnvironmentQuestion, pass_env: tuple[str, ...], *, reply: BinaryIO, printed: BinaryIO
) -> _CheckProcess:
    with TemporaryFile() as asked:
        asked.write(msgspec.msgpack.encode(question))
        asked.seek(0)
        return subprocess.Popen(
            python_program(environment_check.__name__),
            stdin=asked,
            stdout=reply,
            stderr=printed,
            env={**inherited(os.environ, pass_env), SUPERVISOR_VARIABLE: str(os.getpid())},
        )
