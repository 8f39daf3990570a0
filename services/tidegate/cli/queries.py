"""Queries to the services of a run; to admission also when the run ended or admission restarts."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc

from tidegate.core.errors import UnavailableError
from tidegate.launch.operator_credential import operator_token
from tidegate.launch.run_folder import is_running, read_record
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.rpc import open_channel
from tidegate.wire.clients.admission import AdmissionClient

AnswerT = TypeVar("AnswerT")


@asynccontextmanager
async def channel_to(record: RunRecord, service: str) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to a service of a run, with the operator's credential.

    Raises:
        NotFoundError: this pod of a cluster holds no such credential.
    """
    channel = open_channel(record.addresses[service][0], operator_token(record))
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
    """The answer of admission while the run is running; else ``otherwise`` reads its last files.

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
            raise  # its files are in another pod
        return otherwise(folder)  # admission is restarting: its last files are current
