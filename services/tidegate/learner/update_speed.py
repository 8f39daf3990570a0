"""How fast updates of a language model are, and what share of its GPUs' peak they reach."""

from collections.abc import Mapping

import msgspec
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import Accelerator, accelerator_of
from tidegate.core.sizing.learner import WIDTHS, Training, flop_utilisation
from tidegate.learner.config import LearnerConfig
from tidegate.models.model_folder import pretrained_folder, shape_of_folder
from tidegate.runtime.config import Settings


class UpdateSpeed(msgspec.Struct, frozen=True):
    """``training``: of a model whose shape is known, and ``gpu``: of each rank, if plans know its peak; else None.

    ``minibatches``: gradient steps of an update.
    """

    training: Training | None = None
    gpu: Accelerator | None = None
    minibatches: int = 1

    def figures(self, metrics: Mapping[str, float], *, seconds: float) -> dict[str, float]:
        """Figures of an update by name, from its metrics and its time; none of one that computed no tokens."""
        # Of a version with several updates the metrics are their means.
        updates = metrics.get("updates", 1.0)
        tokens = metrics.get("update_tokens", 0.0) * updates
        if tokens <= 0.0 or seconds <= 0.0:
            return {}
        found = {"update_tokens_per_s": tokens / seconds}
        if self.training is not None and self.gpu is not None:
            # Attention grows with the texts that there are, and not with the longest that is allowed.
            length = max(1, round(metrics["text_tokens_mean"]))
            training = msgspec.structs.replace(self.training, length=length)
            found["mfu"] = flop_utilisation(
                training, self.gpu, tokens=tokens, seconds=seconds, steps=updates * self.minibatches
            )
        return found


def find_update_speed(
    settings: Settings, config: LearnerConfig, *, device: torch.device, ranks: int
) -> UpdateSpeed:
    """What is known of the run's model and of the device; a model that the formulas do not describe has no MFU."""
    policy = settings.policy
    if policy.kind != "transformers" or device.type != "cuda":
        return UpdateSpeed()
    try:
        shape = shape_of_folder(pretrained_folder(policy.path))
    except ConfigError:
        return UpdateSpeed()
    _, memory_bytes = torch.cuda.mem_get_info(device)
    training = Training(
        shape,
        length=policy.context_length,
        lora_rank=policy.lora.rank,
        width_bytes=WIDTHS[policy.dtype],
        pass_tokens=config.pass_tokens,
        ranks=ranks,
    )
    gpu = accelerator_of(torch.cuda.get_device_name(device), memory_bytes)
    return UpdateSpeed(training, gpu, config.language_model.minibatches)
