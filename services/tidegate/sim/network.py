"""What lies between processes: messages arrive late, out of order, long after they were given up, or never."""

import asyncio
import random
from collections.abc import Callable

import msgspec

# When a connection notices that nothing comes through any more: a reset at once, a silence at its keepalive.
NOTICED_S = (0.1, 5.0)


class Weather(msgspec.Struct, frozen=True):
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


CALM = Weather()
BREEZE = Weather(jitter_s=0.03, loss=0.01, late=0.3)
STORM = Weather(delay_s=0.02, jitter_s=0.4, loss=0.12, late=0.4)


class Network:
    """Carries every message. ``cut`` names processes that nothing reaches and from which nothing comes."""

    def __init__(self, rng: random.Random) -> None:
        """``rng`` decides each message's way; nobody else draws from it."""
        self._rng = rng
        self.weather = CALM
        self.cut: frozenset[str] = frozenset()
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
        """One message one way, ``extra_s`` later than the weather has it; order is not kept.

        ``on_lost`` is called when it did not come through in time, once the connection noticed.
        """
        weather, rng, loop = self.weather, self._rng, asyncio.get_running_loop()
        self.num_sent += 1
        delay_s = weather.delay_s + rng.random() * weather.jitter_s + extra_s
        is_cut = not self.cut.isdisjoint(between)
        if is_cut or (weather.loss and rng.random() < weather.loss):
            self.num_lost += 1
            if on_lost is not None:
                loop.call_later(rng.uniform(*NOTICED_S), on_lost)
            if is_cut or rng.random() >= weather.late:
                return
            delay_s += rng.random() * weather.late_s
        loop.call_later(delay_s, arrive)
