"""The scenario of a seed: the shape of the cluster, its limits, and whether faults are injected."""

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegate.runtime.config import LongTailConfig

TICK_S = 0.05
MAX_LAGS = (0, 1, 4, 16)
# The end of a run is free of faults, and updates must go on (I9). Half of a short run.
HEALTHY_TICKS = 1000


class Scenario(msgspec.Struct, frozen=True):
    """The parameters of a run. Durations in virtual seconds, limits in trajectories, ``ticks`` of ``TICK_S``.

    ``max_running`` and ``batch_size`` as in a run file. ``policy_delays_s``: the delay of announcements to each
    actor; they differ on purpose. ``small_streams``: messages that the work queues hold at most, in
    place of their limits by bytes, so that they fill up; ``max_resident`` is as small for the trajectory store.
    ``latency`` and ``long_tail`` as in a run file. ``writes_tokens``: actors of text run engines that write tokens, so
    that other actors resume rollouts. ``central_inference``: segments are acted in by the inference service.
    """

    seed: int
    ticks: int
    max_lag: int
    max_age_s: float
    kind: Literal["segments", "text"]
    group_size: int
    batch_size: int
    max_running: int
    num_actors: int
    num_environments: int
    slots: int
    prefetch: int
    rollout_s: float
    update_s: float
    checkpoint_every_steps: int
    policy_delays_s: tuple[float, ...]
    small_streams: int
    max_resident: int
    faults: bool
    latency: str = ""
    long_tail: LongTailConfig = LongTailConfig()
    writes_tokens: bool = False
    central_inference: bool = False

    @property
    def healthy_from_tick(self) -> int:
        """From this tick on no fault is active."""
        return max(self.ticks // 2, self.ticks - HEALTHY_TICKS) if self.faults else 0

    def rng(self, purpose: str) -> random.Random:
        """A generator per purpose, so that a new draw for one does not change the others."""
        return random.Random(f"{self.seed}/{purpose}")


def draw_scenario(
    seed: int,
    *,
    ticks: int,
    max_lag: int | None = None,
    faults: bool = True,
    central_inference: bool = False,
) -> Scenario:
    """The scenario of a seed; ``max_lag`` is drawn as well unless it is given.

    ``central_inference``: with the inference service, so always of segments.
    """
    rng = random.Random(f"{seed}/scenario")
    drawn_lag = rng.choice(MAX_LAGS)
    drawn_kind = rng.choice(("segments", "text"))
    kind = "segments" if central_inference else drawn_kind
    group_size = 1 if kind == "segments" else rng.choice((2, 4))
    batch_size = group_size * rng.choice((1, 2, 3))
    num_actors = rng.randint(1, 3)
    return Scenario(
        seed=seed,
        ticks=ticks,
        max_lag=drawn_lag if max_lag is None else max_lag,
        max_age_s=rng.choice((15.0, 60.0)),
        kind=kind,
        group_size=group_size,
        batch_size=batch_size,
        max_running=max(group_size, batch_size * rng.choice((1, 2, 4)) - rng.choice((0, 1))),
        num_actors=num_actors,
        num_environments=rng.randint(1, 2) if kind == "text" else 1,
        slots=rng.randint(1, 2),
        prefetch=rng.randint(0, 2),
        rollout_s=rng.choice((0.2, 0.5)),
        update_s=rng.choice((0.1, 0.4)),
        checkpoint_every_steps=rng.choice((1, 3, 8)),
        policy_delays_s=tuple(_delays(rng, num_actors)),
        small_streams=rng.choice((3, 8, 64)),
        max_resident=batch_size * rng.choice((1, 3, 100)),
        faults=faults,
        central_inference=central_inference,
    )


def _delays(rng: random.Random, num_actors: int) -> Sequence[float]:
    return [rng.choice((0.0, 0.05, 0.3, 1.0)) for _ in range(num_actors)]
