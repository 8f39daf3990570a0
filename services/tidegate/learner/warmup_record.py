"""What a run's first version was warmed up by: an event of the run, and part of a model card."""

import msgspec

# The kind of the event; the learner sends it once its first version is published.
WARMED_UP = "warmed_up"


class WarmupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One warm-up.

    ``demonstrations``: as in the run file, ``pairs`` of them trained on in ``steps`` gradient steps; ``tokens``: with a
    loss, repeats included. ``solved``: of a small model, the share of held-out demonstrations that it reproduces.
    ``loss_before``, ``loss_after``: of a pretrained one, on held-out demonstrations, in nats a token.
    """

    demonstrations: str
    pairs: int
    steps: int
    tokens: int
    solved: float | None = None
    loss_before: float | None = None
    loss_after: float | None = None
