"""Settings of the warm-up; read by run files, so nothing heavy is imported here."""

from typing import Annotated

import msgspec


class WarmupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Length and optimiser of the warm-up.

    ``stop_at_solved``: share of the held-out demonstrations that sampling at temperature 1 reproduces, at which it
    stops; under 0.2 most groups have no signal, above 0.7 few have any left. ``max_steps``: gradient steps after which
    it fails.
    ``learning_rate``: AdamW's, reached after ``ramp_steps``. ``batch_size``: demonstrations a step.
    ``evaluate_every_steps``: steps between two evaluations. ``heldout_problems``: the most problems of an evaluation;
    ``heldout_samples``: completions each.
    """

    stop_at_solved: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.4
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2000
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 3e-3
    ramp_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20
    weight_decay: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.01
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    evaluate_every_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    heldout_problems: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 400
    heldout_samples: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
