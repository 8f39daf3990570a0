"""A user's own objective for completions: loaded, tried on a small batch before the run, and checked at each use.

It is a function ``(tokens, settings)`` as those of ``algorithms.grpo.OBJECTIVES`` are, and returns ``ObjectiveValues``,
or the values alone.
"""

import inspect
import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from tidegate.algorithms.completion_tokens import CompletionTokens, ObjectiveValues
from tidegate.algorithms.grpo import Objective, grpo_loss
from tidegate.algorithms.grpo_inputs import grpo_inputs
from tidegate.algorithms.grpo_settings import OBJECTIVE_NAMES, GrpoSettings
from tidegate.core.errors import ConfigError
from tidegate.runtime.own_code.loading import described, load_own
from tidegate.runtime.own_code.references import OwnReference, resolve, shown_path

FORM = "def my_loss(tokens, settings)"
# Two prompts with two completions each, of up to three tokens; one completion has a reply's token inside.
TRIED_MASK = ((True, True, True), (True, False, True), (True, True, False), (True, True, True))
TRIED_REWARDS = (0.0, 1.0, 1.0, 0.0)
TRIED_LOGPROB, TRIED_DRIFT = -1.5, 0.1


class OwnObjective:
    """Fulfils ``algorithms.grpo.Objective``; every mistake in it is a sentence with its file and line."""

    def __init__(self, function: Any, reference: OwnReference) -> None:
        """``function``: what the reference names.

        Raises:
            ConfigError: it cannot be called as an objective.
        """
        try:
            inspect.signature(function).bind("tokens", "settings")
        except TypeError as error:
            raise ConfigError(
                f"{reference.written} cannot be called as (tokens, settings)",
                why=str(error),
                fix=f"define it as {FORM}",
            ) from error
        self._function = function
        self._written = reference.written
        self._file = reference.source
        code: Any = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            self._file = code.co_filename
            self._written += f" ({shown_path(code.co_filename)}:{code.co_firstlineno})"

    def __call__(self, tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
        """The values of a minibatch.

        Raises:
            ConfigError: the code raised, or returned what are no values of these completions.
        """
        try:
            found: Any = self._function(tokens, settings)
        except Exception as error:  # own code may raise anything
            raise ConfigError(
                f"The objective {self._written} failed",
                why=described(error, file=self._file),
                fix="correct it",
            ) from error
        if isinstance(found, Tensor):
            found = ObjectiveValues(found, torch.zeros_like(tokens.mask_BT))
        shape = tuple(tokens.mask_BT.shape)
        if not isinstance(found, ObjectiveValues):
            raise self._wrong(f"it returned {type(found).__name__}")
        if tuple(found.values.shape) not in (shape, shape[:1]):
            raise self._wrong(
                f"its values have the shape {tuple(found.values.shape)}, and these completions {shape} or {shape[:1]}"
            )
        if found.limited_BT.shape != tokens.mask_BT.shape or found.limited_BT.dtype != torch.bool:
            raise self._wrong(f"its limited_BT is no tensor of booleans of the shape {shape}")
        return found

    def check(self, settings: GrpoSettings) -> None:
        """Compute one loss and its gradient on a small batch, without the KL to a reference, which has one of its own.

        Raises:
            ConfigError: the loss is not finite, or does not depend on the policy that is trained.
        """
        logprobs_BT = torch.full((4, 3), TRIED_LOGPROB, dtype=torch.float32)
        logprobs_BT += TRIED_DRIFT * torch.arange(12).reshape(4, 3) / 12
        behavior_BT = logprobs_BT - TRIED_DRIFT
        inputs = grpo_inputs(
            settings,
            mask_BT=torch.tensor(TRIED_MASK),
            rewards_B=torch.tensor(TRIED_REWARDS),
            group_index_B=torch.tensor((0, 0, 1, 1)),
            behavior_logprobs_BT=behavior_BT,
            proximal_logprobs_BT=behavior_BT + TRIED_DRIFT / 2 if settings.reads_proximal else None,
            reference_logprobs_BT=behavior_BT if settings.reads_reference else None,
            version_gap_BT=torch.ones_like(behavior_BT) if settings.reads_version_gap else None,
        )
        trained_BT = logprobs_BT.clone().requires_grad_()
        without_kl = msgspec.structs.replace(settings, kl_weight=0.0)
        loss = grpo_loss(trained_BT, inputs, without_kl, objective=self)
        total = float(loss.total.detach())
        if not math.isfinite(total):
            raise self._wrong(f"its loss on a small batch is {total}")
        gradient_BT = None
        if loss.total.requires_grad:
            (gradient_BT,) = torch.autograd.grad(loss.total, trained_BT, allow_unused=True)
        if gradient_BT is None or not bool((gradient_BT != 0).any()):
            raise self._wrong(
                "its loss has no gradient: it does not depend on tokens.logprobs_BT, or was detached from it"
            )
        if not bool(torch.isfinite(gradient_BT).all()):
            raise self._wrong("its gradient on a small batch is not finite")

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"The objective {self._written} cannot be trained with",
            why=why,
            fix="return values to maximise, (B, T) or (B,), computed from tokens.logprobs_BT: docs/objectives.md",
        )


def open_objective(settings: GrpoSettings, *, folder: str) -> Objective | None:
    """A run's own objective, loaded and tried; None for one of this package. ``folder``: of the run file.

    Raises:
        ConfigError: it cannot be loaded, or not be computed with.
    """
    if not settings.is_own:
        return None
    reference = resolve(settings.objective, kind="objectives", folder=folder, known=OBJECTIVE_NAMES)
    objective = OwnObjective(load_own(reference), reference)
    objective.check(settings)
    return objective
