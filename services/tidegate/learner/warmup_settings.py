"""Settings of the warm-up; read by run files, so nothing heavy is imported here."""

from typing import Annotated

import msgspec

# Beside the prompts of the run folder.
DEMONSTRATIONS_FILE = "demonstrations.jsonl"
# ``demonstrations`` of the run's own task.
OF_TASK = "task"


class WarmupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data, length and optimiser of the supervised warm-up before the first version.

    ``demonstrations``: what a pretrained model (``transformers``) is warmed up on: ``task``, the demonstrations of the
    run's environment, or a file of JSON lines, relative to the run file. Each line is ``messages`` (a conversation), or
    ``prompt`` and ``completion``; the loss is on the model's own turns alone. Empty: a pretrained model is not warmed
    up, and a ``char_lm`` on those of its environment.
    ``stop_at_solved`` (``char_lm``): share of the held-out demonstrations that sampling at temperature 1 reproduces, at
    which it stops; under 0.2 most groups have no signal, above 0.7 few have any left. ``max_steps``: gradient steps
    after which a ``char_lm`` fails, and a pretrained model has finished.
    ``patience`` (``transformers``): evaluations in a row without a lower loss on held-out demonstrations, after which
    it stops. The first version has the weights of the lowest.
    ``learning_rate``: AdamW's, reached after ``ramp_steps``; by default 0.003 of a ``char_lm``, 0.0001 of adapters and
    0.00001 of a whole pretrained model. ``batch_size``: demonstrations a step, by default 256 of a ``char_lm`` and 16
    of a pretrained model.
    ``evaluate_every_steps``: steps between two evaluations. ``heldout_problems``: the most demonstrations of an
    evaluation; ``heldout_samples`` (``char_lm``): completions each.
    """

    demonstrations: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    stop_at_solved: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.4
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2000
    patience: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    learning_rate: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    ramp_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20
    weight_decay: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.01
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=65536)] | None = None
    max_grad_norm: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    evaluate_every_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    heldout_problems: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 400
    heldout_samples: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2

    def applies_to(self, policy_kind: str) -> bool:
        """Whether a policy of this kind is warmed up."""
        return policy_kind == "char_lm" or (policy_kind == "transformers" and bool(self.demonstrations))

    @property
    def file(self) -> str:
        """The file of the demonstrations as the run file names it; empty where they are the task's."""
        return "" if self.demonstrations == OF_TASK else self.demonstrations
