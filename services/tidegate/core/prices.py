"""Cost of the platform: dollars an hour of each kind of replica, and the cost of work at these prices."""

from typing import Annotated

import msgspec

UsdPerHour = Annotated[float, msgspec.Meta(ge=0.0, le=100_000.0)]

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``prices`` of the run file. `explain` and `plan` price fixes with it, `receipt` the run.

    Dollars an hour of one actor, one environment worker and one learner replica, in [0, 100,000]. The defaults are
    examples (a spot machine with a few cores, a small one, a rented accelerator): wrong prices rank fixes and price
    runs wrongly, and affect nothing else. 0: hardware that you already own.
    """

    actor_usd_per_h: UsdPerHour = 0.50
    environment_usd_per_h: UsdPerHour = 0.25
    learner_usd_per_h: UsdPerHour = 3.00

    def usd_per_h(self, *, num_actors: float, num_environments: float, num_learners: float) -> float:
        """What a platform of this size costs an hour."""
        return (
            num_actors * self.actor_usd_per_h
            + num_environments * self.environment_usd_per_h
            + num_learners * self.learner_usd_per_h
        )


EXAMPLE_PRICES = Prices()


def dollars(usd: float) -> str:
    """Dollars as text: to the cent, or four digits below one dollar."""
    return f"${usd:,.2f}" if usd >= 1.0 or usd == 0.0 else f"${usd:.4g}"


def usd_per_million(usd_per_h: float, *, per_s: float) -> float:
    """Dollars per million samples at a rate; infinite where nothing is trained and something is paid for."""
    if per_s <= 0.0:
        return float("inf") if usd_per_h > 0.0 else 0.0
    return usd_per_h / SECONDS_PER_HOUR / per_s * MILLION
