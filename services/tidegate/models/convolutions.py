"""Convolutional networks over images, written once: under torch in the learner, as an ONNX graph in actors.

A network is a function over ``ImageOperations``. Their three forms are ``ParameterShapes`` below (the shape of every
parameter, no arithmetic), ``models.torch_images`` and ``models.onnx_graph``. Convolutions have weights (channels out,
channels in, height, width); the layers after them (inputs, outputs), as everywhere.

Shapes: B images, C channels, H height, W width, I inputs of a dense layer, U its units.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import Leaf, recorded_shape
from tidegate.models.layers import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, orthogonal

POLICY_HEAD, VALUE_HEAD = "policy", "value"
NetworkName = Literal["shallow", "nature", "impala"]
ValueT = TypeVar("ValueT")
PIXEL_SCALE = 1.0 / 255.0
# The last layer of a residual block, whose name ends like this, starts at zero: a block first passes its input on, and
# a deep network begins at the scale of a shallow one. Source: Goyal 2017, section 5.1.
RESIDUAL = "residual"


class ImageOperations(Protocol[ValueT]):
    """What networks are made of. ``layer`` names a layer's parameters: ``<layer>.weight`` and ``<layer>.bias``."""

    def pixels(self, observation: str, layout: "ImageLayout") -> ValueT:
        """The images of one observation, (B, C, H, W) between 0 and 1."""
        ...

    def numbers(self) -> ValueT:
        """The inputs (B, I) of all other parts of the observation."""
        ...

    def convolution(
        self, images: ValueT, layer: str, *, channels: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> ValueT:
        """A convolution with a bias; ``kernel`` × ``kernel`` pixels."""
        ...

    def max_pool(self, images: ValueT) -> ValueT:
        """The largest of 3 × 3 pixels, every second one, padded by 1."""
        ...

    def relu(self, values: ValueT) -> ValueT:
        """Elementwise max(0, x)."""
        ...

    def add(self, values: ValueT, others: ValueT) -> ValueT:
        """Elementwise sum."""
        ...

    def flatten(self, images: ValueT) -> ValueT:
        """(B, C, H, W) as (B, C·H·W)."""
        ...

    def side_by_side(self, parts: Sequence[ValueT]) -> ValueT:
        """Parts (B, ...) as one (B, I)."""
        ...

    def dense(self, inputs: ValueT, layer: str, *, units: int) -> ValueT:
        """(B, I) to (B, U)."""
        ...

    def head(self, features: ValueT, layer: str, *, units: int) -> ValueT:
        """``dense``, in float32 whatever the precision of the layers below."""
        ...


class ImageLayout(msgspec.Struct, frozen=True):
    """How the images of a leaf become (C, H, W): ``axes`` permutes (B, *leaf shape), then they are reshaped."""

    axes: tuple[int, ...]
    channels: int
    height: int
    width: int


def image_layout(leaf: Leaf) -> ImageLayout:
    """The layout of an image leaf.

    (H, W), (C, H, W), (H, W, C), told apart by which end is shorter, and (F, H, W, C), F stacked frames of the last.
    """
    shape = recorded_shape(leaf)
    if len(shape) == 2:
        return ImageLayout((0, 1, 2), 1, *shape)
    if len(shape) == 4:
        frames, height, width, channels = shape
        return ImageLayout((0, 1, 4, 2, 3), frames * channels, height, width)
    first, middle, last = shape
    if last < first:
        return ImageLayout((0, 3, 1, 2), last, first, middle)
    return ImageLayout((0, 1, 2, 3), first, middle, last)


def shallow(ops: ImageOperations[ValueT], images: ValueT, trunk: str) -> ValueT:
    """Two convolutions without padding. Source: Mnih 2013, section 4.1; Mnih 2016, section 5.1."""
    return _convolutions(ops, images, trunk, layers=((16, 8, 4), (32, 4, 2)))


def nature(ops: ImageOperations[ValueT], images: ValueT, trunk: str) -> ValueT:
    """Three convolutions without padding. Source: Mnih 2015, methods."""
    return _convolutions(ops, images, trunk, layers=((32, 8, 4), (64, 4, 2), (64, 3, 1)))


def _convolutions(
    ops: ImageOperations[ValueT], images: ValueT, trunk: str, *, layers: Sequence[tuple[int, int, int]]
) -> ValueT:
    """``layers``: channels, kernel and stride of each."""
    for number, (channels, kernel, stride) in enumerate(layers):
        images = ops.relu(
            ops.convolution(images, f"{trunk}.{number}", channels=channels, kernel=kernel, stride=stride)
        )
    return images


def impala(ops: ImageOperations[ValueT], images: ValueT, trunk: str) -> ValueT:
    """Three sections of a convolution, pooling and two residual blocks. Source: Espeholt 2018, figure 3 right."""
    for section, channels in enumerate((16, 32, 32)):
        images = ops.max_pool(
            ops.convolution(images, f"{trunk}.{section}", channels=channels, kernel=3, padding=1)
        )
        for block in range(2):
            inner = images
            for layer in ("first", RESIDUAL):
                inner = ops.convolution(
                    ops.relu(inner),
                    f"{trunk}.{section}.{block}.{layer}",
                    channels=channels,
                    kernel=3,
                    padding=1,
                )
            images = ops.add(images, inner)
    return ops.relu(images)


# Each for any ``ImageOperations``: those, (B, C, H, W) images, and the prefix of its parameters' names.
NETWORKS: dict[NetworkName, Callable[[ImageOperations[Any], Any, str], Any]] = {
    "shallow": shallow,
    "nature": nature,
    "impala": impala,
}
# Units of the layer after the convolutions, as published.
FEATURES: dict[NetworkName, int] = {"shallow": 256, "nature": 512, "impala": 256}


class ParameterShapes:
    """``ImageOperations`` on shapes alone, without the leading B; ``shapes``: of all parameters met, in order."""

    def __init__(self, *, num_numbers: int) -> None:
        """``num_numbers``: inputs beside the images."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._num_numbers = num_numbers

    def pixels(self, observation: str, layout: ImageLayout) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return (layout.channels, layout.height, layout.width)

    def numbers(self) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return (self._num_numbers,)

    def convolution(
        self,
        images: tuple[int, ...],
        layer: str,
        *,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
    ) -> tuple[int, ...]:
        """See ``ImageOperations``.

        Raises:
            ConfigError: the images are smaller than the kernel.
        """
        channels_in, *sides = images
        if min(sides) + 2 * padding < kernel:
            raise ConfigError(
                f"Images of {sides[0]}x{sides[1]} pixels are too small for the layer {layer}",
                why=f"it reads {kernel}x{kernel} of them at once",
                fix="set policy.network to impala, or use larger images",
            )
        self.shapes[f"{layer}.weight"] = (channels, channels_in, kernel, kernel)
        self.shapes[f"{layer}.bias"] = (channels,)
        return (channels, *((side + 2 * padding - kernel) // stride + 1 for side in sides))

    def max_pool(self, images: tuple[int, ...]) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        channels, *sides = images
        return (channels, *((side - 1) // 2 + 1 for side in sides))

    def relu(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return values

    def add(self, values: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        assert values == others, "a residual block keeps the shape"
        return values

    def flatten(self, images: tuple[int, ...]) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return (math.prod(images),)

    def side_by_side(self, parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return (sum(size for (size,) in parts),)

    def dense(self, inputs: tuple[int, ...], layer: str, *, units: int) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        self.shapes[f"{layer}.weight"] = (*inputs, units)
        self.shapes[f"{layer}.bias"] = (units,)
        return (units,)

    def head(self, features: tuple[int, ...], layer: str, *, units: int) -> tuple[int, ...]:
        """See ``ImageOperations``."""
        return self.dense(features, layer, units=units)


def init_weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Fresh weights of a layer: orthogonal by its inputs, which for a convolution are all pixels it reads at once."""
    channels, *window = reversed(shape) if len(shape) == 2 else shape
    weight = orthogonal((math.prod(window), channels), rng, gain=_gain(name))
    return weight if len(shape) == 2 else np.ascontiguousarray(weight.T).reshape(shape)


def _gain(name: str) -> float:
    layer = name.removesuffix(".weight")
    if layer.endswith(f".{RESIDUAL}"):
        return 0.0
    return {POLICY_HEAD: POLICY_GAIN, VALUE_HEAD: VALUE_GAIN}.get(layer, HIDDEN_GAIN)
