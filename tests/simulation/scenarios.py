"""Scenarios that several of these tests start from."""

from typing import Any

import msgspec

from tidegate.sim.scenario import Scenario, draw_scenario

TICKS = 1000


def groups_of_four(seed: int, *, max_lag: int, **changes: Any) -> Scenario:
    """Groups of four on three actors, so that some samples are running while others are trained."""
    fields: dict[str, Any] = {
        "kind": "text",
        "group_size": 4,
        "batch_size": 4,
        "max_running": 32,
        "num_actors": 3,
        "policy_delays_s": (0.0, 0.3, 1.0),
        "slots": 2,
        "update_s": 0.1,
    }
    return msgspec.structs.replace(draw_scenario(seed, ticks=TICKS, max_lag=max_lag), **(fields | changes))
