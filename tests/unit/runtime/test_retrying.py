"""Retry: bounds of the pauses, their spread over many clients, and every way in which attempts end."""

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.runtime.drain import Drain
from tidegate.runtime.process_random import GENERATOR
from tidegate.runtime.retrying import (
    RETRY_AFTER_MAX_S,
    Backoff,
    DrainingError,
    FailedAttempt,
    LimitWhenDraining,
    StopWhenDraining,
    UntilCancelled,
    retry,
)
from tidegate.sim.virtual_loop import VirtualLoop

T = TypeVar("T")

BACKOFF = Backoff(start_s=0.1, max_s=2.0)
AWAY = UnavailableError("away")


def run(work: Coroutine[Any, Any, T]) -> T:
    """On virtual time: hours of pauses take no time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class Peer:
    """Fails ``num_failures`` times, then answers; remembers when it was called."""

    def __init__(self, num_failures: float, error: TidegateError = AWAY) -> None:
        self._left = num_failures
        self._error = error
        self.called_at_s: list[float] = []

    async def call(self) -> str:
        self.called_at_s.append(asyncio.get_running_loop().time())
        if self._left > 0:
            self._left -= 1
            raise self._error
        return "answer"


# -- pauses ------------------------------------------------------------------------------------------------------------


@given(
    start_s=st.floats(0.001, 10.0),
    max_s=st.floats(0.001, 100.0),
    num=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
def test_pauses_double_to_their_bound_and_keep_to_the_upper_half(
    start_s: float, max_s: float, num: int, seed: int
) -> None:
    pauses_s = Backoff(start_s=start_s, max_s=max_s).pauses_s(random.Random(seed).random)
    for index, pause_s in enumerate(itertools.islice(pauses_s, num)):
        nominal_s = min(start_s * 2.0**index, max_s)
        assert 0.499 * nominal_s <= pause_s <= nominal_s * 1.001


def test_a_thousand_clients_that_fail_at_once_return_spread_over_the_interval() -> None:
    clients = [Peer(num_failures=3) for _ in range(1000)]

    async def fail_together() -> None:
        rng = random.Random(7)
        await asyncio.gather(
            *(retry(client.call, BACKOFF, draining=UntilCancelled(), draw=rng.random) for client in clients)
        )

    run(fail_together())
    for attempt, (earliest_s, latest_s) in enumerate([(0.05, 0.1), (0.15, 0.3), (0.35, 0.7)], start=1):
        times_s = sorted(client.called_at_s[attempt] for client in clients)
        assert earliest_s <= times_s[0]
        assert times_s[-1] <= latest_s + 1e-3
        # The interval is used: both ends are reached, and its fullest tenth holds no crowd.
        width_s = times_s[-1] - times_s[0]
        assert width_s > 0.75 * (latest_s - earliest_s)
        tenths = [0] * 10
        for time_s in times_s:
            tenths[min(9, int(10 * (time_s - times_s[0]) / width_s))] += 1
        assert max(tenths) < 250


def test_jitter_follows_the_seed_of_the_process() -> None:
    def times_s() -> list[float]:
        state = GENERATOR.getstate()
        GENERATOR.seed("one run")
        try:
            peer = Peer(num_failures=5)
            run(retry(peer.call, BACKOFF, draining=UntilCancelled()))
        finally:
            GENERATOR.setstate(state)
        return peer.called_at_s

    before = times_s()
    random.random()  # as a thread of a library does
    assert times_s() == before


def test_forked_processes_draw_other_numbers() -> None:
    read, write = os.pipe()
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            os.write(write, f"{GENERATOR.random()} ".encode())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    os.close(write)
    with os.fdopen(read) as drawn:
        first, second = drawn.read().split()
    assert first != second


def test_no_pause_is_shorter_than_the_peer_asked_for_and_patience_is_bounded() -> None:
    busy = UnavailableError("busy")
    for asked_s, least_s in ((7.0, 7.0), (9_999.0, RETRY_AFTER_MAX_S)):
        busy.retry_after_s = asked_s
        peer = Peer(1, busy)
        run(retry(peer.call, BACKOFF, draining=UntilCancelled()))
        assert least_s < peer.called_at_s[1] - peer.called_at_s[0] <= least_s + 0.11


# -- ends --------------------------------------------------------------------------------------------------------------


def test_what_cannot_get_better_is_tried_once() -> None:
    peer = Peer(1, RecordError("not a record"))
    with pytest.raises(RecordError):
        run(retry(peer.call, BACKOFF, deadline_s=60.0))
    assert len(peer.called_at_s) == 1


def test_the_caller_decides_what_is_retryable() -> None:
    peer = Peer(1, RecordError("changed on its way"))
    answer = run(retry(peer.call, BACKOFF, deadline_s=60.0, is_retryable=lambda _error: True))
    assert (answer, len(peer.called_at_s)) == ("answer", 2)


@given(deadline_s=st.floats(0.0, 100.0), seed=st.integers(0, 2**32))
def test_no_attempt_begins_after_the_deadline(deadline_s: float, seed: int) -> None:
    peer = Peer(num_failures=float("inf"))
    with pytest.raises(UnavailableError):
        run(retry(peer.call, BACKOFF, deadline_s=deadline_s, draw=random.Random(seed).random))
    assert peer.called_at_s[-1] <= deadline_s + 1e-6
    # It ends because the next attempt would be late, and never earlier.
    assert peer.called_at_s[-1] + BACKOFF.max_s >= deadline_s - 1e-6


def test_attempts_are_calls() -> None:
    peer = Peer(num_failures=9)
    with pytest.raises(UnavailableError):
        run(retry(peer.call, BACKOFF, attempts=4, draining=UntilCancelled()))
    assert len(peer.called_at_s) == 4


def test_the_deadline_or_a_drain_policy_is_required() -> None:
    with pytest.raises(AssertionError, match="deadline"):
        run(retry(Peer(0).call, BACKOFF))


def test_an_attempt_of_the_caller_counts_as_the_first() -> None:
    peer = Peer(num_failures=9)
    seen: list[FailedAttempt] = []
    with pytest.raises(UnavailableError):
        run(
            retry(
                peer.call,
                BACKOFF,
                attempts=3,
                draining=UntilCancelled(),
                after=UnavailableError("first"),
                on_retry=seen.append,
            )
        )
    assert len(peer.called_at_s) == 2
    assert [(failed.error.what, failed.number) for failed in seen] == [("first", 1), ("away", 2)]
    refused = Peer(0)
    with pytest.raises(RecordError):
        run(retry(refused.call, BACKOFF, deadline_s=9.0, after=RecordError("refused")))
    assert refused.called_at_s == []


def test_only_failures_that_are_attempted_again_are_counted() -> None:
    seen: list[FailedAttempt] = []
    peer = Peer(num_failures=9)
    with pytest.raises(UnavailableError):
        run(retry(peer.call, BACKOFF, attempts=3, draining=UntilCancelled(), on_retry=seen.append))
    assert [failed.number for failed in seen] == [1, 2]
    gaps_s = [after_s - before_s for before_s, after_s in itertools.pairwise(peer.called_at_s)]
    assert gaps_s == pytest.approx([failed.pause_s for failed in seen], abs=1e-3)


# -- draining ----------------------------------------------------------------------------------------------------------


def drained_at(after_s: float, work: Callable[[Drain], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """What ``work`` gives, and when, with a drain requested after a while."""

    async def main() -> tuple[T, float]:
        drain = Drain()
        loop = asyncio.get_running_loop()
        loop.call_later(after_s, drain.request)
        result = await work(drain)
        return result, loop.time()

    return run(main())


def test_draining_ends_a_pause_at_once_where_the_work_is_redelivered() -> None:
    peer = Peer(num_failures=float("inf"))

    async def work(drain: Drain) -> str:
        with pytest.raises(DrainingError, match="away"):
            await retry(peer.call, Backoff(start_s=60.0, max_s=60.0), draining=StopWhenDraining(drain))
        return "stopped"

    _, ended_at_s = drained_at(1.0, work)
    assert ended_at_s == pytest.approx(1.0, abs=1e-3)
    assert len(peer.called_at_s) == 1


def test_a_draining_service_still_makes_one_attempt() -> None:
    async def work(drain: Drain) -> str:
        drain.request()
        return await retry(Peer(0).call, BACKOFF, draining=StopWhenDraining(drain))

    assert drained_at(9.0, work)[0] == "answer"


def test_draining_leaves_a_few_more_attempts_to_finish_what_is_finished() -> None:
    peer = Peer(num_failures=float("inf"))

    async def work(drain: Drain) -> str:
        with pytest.raises(UnavailableError, match="away"):
            await retry(peer.call, BACKOFF, draining=LimitWhenDraining(drain, attempts=4))
        return "given up"

    drained_at(10.0, work)
    assert len([time_s for time_s in peer.called_at_s if time_s > 10.0]) == 4


def test_finished_work_is_retried_until_its_owner_cancels_it() -> None:
    peer = Peer(num_failures=float("inf"))

    async def work(drain: Drain) -> str:
        task = asyncio.create_task(retry(peer.call, BACKOFF, draining=UntilCancelled()))
        await drain.wait()
        await asyncio.sleep(100.0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return "cancelled"

    drained_at(10.0, work)
    assert 50 < len([time_s for time_s in peer.called_at_s if time_s > 10.0]) < 110
