"""One child process of own code, seen from its service: asked one question at a time, and killed when it is late.

The process has a session of its own, so that what it started ends with it, and the kernel kills it when the service is
gone.
"""

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from contextlib import suppress
from typing import Generic, TypeVar, cast

import msgspec

from tidegate.core.errors import DeadlineError, RecordError, UnavailableError
from tidegate.runtime.own_code.frames import ANSWER_BYTES_MAX, HEAD, frame
from tidegate.runtime.own_code.references import OwnReference, shown_path
from tidegate.runtime.python_program import python_program

AnswerT = TypeVar("AnswerT")
# Of what the code prints, the end is kept: it holds the stack of a process that crashed or hangs.
PRINTED_BYTES_MAX = 16 << 10
# How long a hanging process has to show its stack, and a dead one's last words to arrive.
LAST_WORDS_S = 0.5
# What ``faulthandler`` writes first, and the time it has for the rest.
STACK_BEGINS = b"most recent call first"
STACK_S = 0.02
# Credentials and addresses of the platform; everything else of the service's environment is the user's own.
PLATFORM_VARIABLES = "TIDEGATE_"

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+) in (\S+)')


def without_platform(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of own code: without credentials and addresses of the platform."""
    return {name: value for name, value in environ.items() if not name.startswith(PLATFORM_VARIABLES)}


class EndedError(UnavailableError):
    """The process ended before it answered. ``number``: of the signal that ended it; 0 for an exit."""

    def __init__(self, what: str, *, where: str, number: int, printed: str) -> None:
        super().__init__(what)
        self.where = where
        self.number = number
        self.printed = printed


class LateError(DeadlineError):
    """The process did not answer in time; ``where``: what it was doing then, if it could say."""

    def __init__(self, what: str, *, where: str, stack: str) -> None:
        super().__init__(what)
        self.where = where
        self.stack = stack


class _Pipes(asyncio.SubprocessProtocol):
    """Collects one answer and the end of what was printed."""

    def __init__(self) -> None:
        # From the start: the first answer comes unasked, and may come before anybody waits for it.
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.printed = bytearray()
        self.has_stack = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.is_silent = asyncio.Event()
        self._data = bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.printed += data
            if STACK_BEGINS in self.printed:
                self.has_stack.set()
            del self.printed[:-PRINTED_BYTES_MAX]
            return
        self._data += data
        if len(self._data) < HEAD.size:
            return
        (length,) = HEAD.unpack_from(self._data)
        if length > ANSWER_BYTES_MAX:
            self._fail(RecordError(f"Own code answered with {length:,} bytes", fix="return a number"))
        elif len(self._data) >= HEAD.size + length:
            whole = bytes(self._data[HEAD.size : HEAD.size + length])
            del self._data[: HEAD.size + length]
            if not self.answer.done():
                self.answer.set_result(whole)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self.is_silent.set()
        elif fd == 1:
            self._fail(UnavailableError("The process closed its output"))

    def process_exited(self) -> None:
        self.has_ended.set()
        self._fail(UnavailableError("The process ended"))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # retrieved: otherwise asyncio logs it where no call awaits the answer


class ChildProcess(Generic[AnswerT]):
    """A running child; ``close`` it."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        pipes: _Pipes,
        answers: "msgspec.msgpack.Decoder[AnswerT]",
        *,
        file: str,
    ) -> None:
        """``start`` makes it. ``file``: of the code, whose frames are looked for in a stack."""
        self._transport = transport
        self._pipes = pipes
        self._answers = answers
        self._file = file

    @classmethod
    async def start(
        cls,
        module: str,
        reference: OwnReference,
        answers: "msgspec.msgpack.Decoder[AnswerT]",
        *,
        memory_bytes: int,
        environ: Mapping[str, str],
    ) -> "ChildProcess[AnswerT]":
        """Start the program ``module``; its first answer tells whether the code could be loaded."""
        loop = asyncio.get_running_loop()
        transport, pipes = await loop.subprocess_exec(
            _Pipes,
            *python_program(
                module, msgspec.json.encode(reference).decode(), str(os.getpid()), str(memory_bytes)
            ),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env=without_platform(environ),
        )
        return cls(transport, pipes, answers, file=reference.source)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return not self._pipes.has_ended.is_set() and not self._transport.is_closing()

    async def first_answer(self, *, deadline_s: float) -> AnswerT:
        """What it says once its code is loaded. Raises as ``ask``."""
        return await self._answer(deadline_s=deadline_s)

    async def ask(self, question: msgspec.Struct, *, deadline_s: float) -> AnswerT:
        """The answer to a question; after any error the process must be closed, as its next answer may be to this.

        Raises:
            LateError: none came within ``deadline_s``.
            EndedError: it ended.
            RecordError: it wrote what is no answer.
        """
        if self._pipes.has_ended.is_set():
            raise await self._ended()
        self._pipes.answer = asyncio.get_running_loop().create_future()
        # uvloop's transports are not derived from asyncio's.
        stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        stdin.write(frame(question))
        return await self._answer(deadline_s=deadline_s)

    async def close(self) -> None:
        """Kill the process and all that it started; returns once it has ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)  # also what it left running, if it has ended
        if self._transport.get_returncode() is None:
            await self._pipes.has_ended.wait()
        self._transport.close()

    async def _answer(self, *, deadline_s: float) -> AnswerT:
        try:
            async with asyncio.timeout(deadline_s):
                whole = await self._pipes.answer
        except TimeoutError:
            raise await self._late(deadline_s) from None
        except UnavailableError:
            raise await self._ended() from None
        try:
            return self._answers.decode(whole)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordError("Own code wrote what is no answer", why=str(error)[:200]) from error

    async def _late(self, deadline_s: float) -> LateError:
        printed = self._pipes.printed
        printed.clear()
        self._pipes.has_stack.clear()
        with suppress(ProcessLookupError):
            self._transport.send_signal(signal.SIGUSR1)
        # A process that is stopped, or whose code handles the signal, shows nothing.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._pipes.has_stack.wait()
                await asyncio.sleep(STACK_S)
        stack = printed.decode(errors="replace")
        return LateError(f"it did not end within {deadline_s:g} s", where=self._place_in(stack), stack=stack)

    async def _ended(self) -> EndedError:
        # The output may be closed before the process has ended; what it left running may hold its pipes open.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._pipes.has_ended.wait()
                await self._pipes.is_silent.wait()
        printed = self._pipes.printed.decode(errors="replace")
        code = self._transport.get_returncode()
        number = -code if code is not None and code < 0 else 0
        if number:
            how = f"it was ended by {_signal_name(number)}"
        elif code is None:
            how = "it closed its output"
        else:
            how = f"it ended its process with exit code {code} (os._exit, or a crash)"
        return EndedError(
            how, where=self._place_in(printed) if number else "", number=number, printed=printed
        )

    def _place_in(self, stack: str) -> str:
        """The innermost frame of the code in a stack of ``faulthandler``, which begins with the innermost."""
        frames = _FRAME.findall(stack)
        found = next((each for each in frames if each[0] == self._file), frames[0] if frames else None)
        return f"{shown_path(found[0])}:{found[1]} in {found[2]}" if found else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
