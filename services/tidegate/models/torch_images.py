"""``models.convolutions`` under torch, for the learner; parameters by name, images channels last in memory.

channels_last is 1.4 times as fast as torch's own order on CPUs (Nature CNN, 256 images a gradient step). Under
``torch.autocast`` the layers below the heads compute in its lower precision; parameters stay float32.

Only a process that trains imports this module.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tidegate.models.convolutions import PIXEL_SCALE, ImageLayout


class TorchImages:
    """``ImageOperations`` on tensors. ``observations``: images (B, *leaf shape) uint8; ``numbers``: (B, I)."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        observations: Mapping[str, Tensor],
        numbers: Tensor | None,
    ) -> None:
        self._params = params
        self._observations = observations
        self._numbers = numbers

    def pixels(self, observation: str, layout: ImageLayout) -> Tensor:
        """See ``ImageOperations``."""
        images = self._observations[observation]
        shape = (len(images), layout.channels, layout.height, layout.width)
        images = images.permute(layout.axes).reshape(shape)
        device = images.device.type
        is_lower = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_lower else torch.float32
        # bfloat16 has every integer up to 256.
        return images.to(dtype, memory_format=torch.channels_last) * PIXEL_SCALE

    def numbers(self) -> Tensor:
        """See ``ImageOperations``."""
        assert self._numbers is not None, "asked for only where the observation has numbers"
        return self._numbers

    def convolution(
        self, images: Tensor, layer: str, *, channels: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> Tensor:
        """See ``ImageOperations``."""
        weight = self._params[f"{layer}.weight"].contiguous(memory_format=torch.channels_last)
        bias = self._params[f"{layer}.bias"]
        return F.conv2d(images, weight, bias, stride=stride, padding=padding)

    def max_pool(self, images: Tensor) -> Tensor:
        """See ``ImageOperations``."""
        return F.max_pool2d(images, 3, stride=2, padding=1)

    def relu(self, values: Tensor) -> Tensor:
        """See ``ImageOperations``."""
        return F.relu(values)

    def add(self, values: Tensor, others: Tensor) -> Tensor:
        """See ``ImageOperations``."""
        return values + others

    def flatten(self, images: Tensor) -> Tensor:
        """See ``ImageOperations``."""
        return images.flatten(1)

    def side_by_side(self, parts: Sequence[Tensor]) -> Tensor:
        """See ``ImageOperations``."""
        return torch.cat([part.float() for part in parts], dim=1)

    def dense(self, inputs: Tensor, layer: str, *, units: int) -> Tensor:
        """See ``ImageOperations``."""
        return torch.addmm(self._params[f"{layer}.bias"], inputs, self._params[f"{layer}.weight"])

    def head(self, features: Tensor, layer: str, *, units: int) -> Tensor:
        """See ``ImageOperations``."""
        with torch.autocast(features.device.type, enabled=False):
            return self.dense(features.float(), layer, units=units)
