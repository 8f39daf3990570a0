"""Asking services of a run; and admission of one that may be over, or whose admission may be away for a moment."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc

from tidegate.core.errors import UnavailableError
from tidegate.launch.run_folder import is_running, read_record
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.rpc import open_channel
from tidegate.wire.clients.admission import AdmissionClient

AnswerT = TypeVar("AnswerT")


@asynccontextmanager
async def channel_to(record: RunRecord, service: str) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to a service of a run, for as long as it is asked."""
    channel = open_channel(record.addresses[service][0])
    try:
        yield channel
    finally:
        await channel.close()


def ask_admission(
    folder: Path,
    question: Callable[[AdmissionClient], Awaitable[AnswerT]],
    *,
    otherwise: Callable[[Path], AnswerT],
) -> AnswerT:
    """What admission answers while the run runs; ``otherwise`` reads from the folder what it wrote last.

    Raises:
        TidegateError: admission refused the question, or ``otherwise`` found nothing.
    """
    return asyncio.run(_ask(folder, question, otherwise)) if is_running(folder) else otherwise(folder)


async def _ask(
    folder: Path,
    question: Callable[[AdmissionClient], Awaitable[AnswerT]],
    otherwise: Callable[[Path], AnswerT],
) -> AnswerT:
    record = read_record(folder)
    try:
        async with channel_to(record, "admission") as channel:
            return await question(AdmissionClient(channel))
    except UnavailableError:
        if record.cluster:
            raise  # what it wrote is in another pod
        return otherwise(folder)  # admission is being restarted: what it wrote a moment ago still stands
