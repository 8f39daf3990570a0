"""A fake of the loop that sends an engine's steps to the inference service."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from tidegate.actor.engines.exchange import StepExchange
from tidegate.wire.vector_step import ActedStep, ActStep, StepLayout

Answers = Callable[[ActStep, StepLayout], ActedStep | None]


@contextmanager
def answering(exchange: StepExchange, answers: Answers, layout: StepLayout) -> Generator[None]:
    """An event loop in another thread that answers, as the actor's does."""
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        exchange.attach()
        ready.set()
        step = None
        while True:
            await exchange.wait_for_another(step)
            step = exchange.step
            if step is not None and (answer := answers(step, layout)) is not None:
                exchange.answer(answer)

    ready = threading.Event()
    task = loop.create_task(serve())

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(timeout=60.0)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(timeout=60.0)
        loop.close()
