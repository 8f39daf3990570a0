"""The simulated network: messages arrive late, out of order, long after their timeout, or never."""

import asyncio
import random
from collections.abc import Callable

import msgspec

# When a connection notices that nothing comes through any more: a reset at once, a silence at its keepalive.
NOTICED_S = (0.1, 5.0)


class NetworkConditions(msgspec.Struct, frozen=True):
    """How the network behaves now.

    A message takes ``delay_s`` and up to ``jitter_s`` more. ``loss`` is the share that does not arrive in time; of
    those the share ``late`` arrives all the same, up to ``late_s`` later, as what a client still held when it
    reconnected.
    """

    delay_s: float = 0.001
    jitter_s: float = 0.01
    loss: float = 0.0
    late: float = 0.0
    late_s: float = 6.0


HEALTHY = NetworkConditions()
LOSSY = NetworkConditions(jitter_s=0.03, loss=0.01, late=0.3)
DEGRADED = NetworkConditions(delay_s=0.02, jitter_s=0.4, loss=0.12, late=0.4)


class Network:
    """Carries every message. ``isolated``: processes that receive and send nothing."""

    def __init__(self, rng: random.Random) -> None:
        """``rng`` draws delays and losses; no other part draws from it."""
        self._rng = rng
        self.conditions = HEALTHY
        self.isolated: frozenset[str] = frozenset()
        self.num_sent = 0
        self.num_lost = 0

    def send(
        self,
        arrive: Callable[[], None],
        *,
        between: tuple[str, str],
        extra_s: float = 0.0,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """One message one way, ``extra_s`` later than the conditions delay it; order is not kept.

        ``on_lost`` is called when it did not come through in time, once the connection noticed.
        """
        conditions, rng, loop = self.conditions, self._rng, asyncio.get_running_loop()
        self.num_sent += 1
        delay_s = conditions.delay_s + rng.random() * conditions.jitter_s + extra_s
        is_isolated = not self.isolated.isdisjoint(between)
        if is_isolated or (conditions.loss and rng.random() < conditions.loss):
            self.num_lost += 1
            if on_lost is not None:
                loop.call_later(rng.uniform(*NOTICED_S), on_lost)
            if is_isolated or rng.random() >= conditions.late:
                return
            delay_s += rng.random() * conditions.late_s
        loop.call_later(delay_s, arrive)
