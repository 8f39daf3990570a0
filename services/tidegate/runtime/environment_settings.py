"""Settings of the environments of segments: ``workload.wrappers`` and ``workload.reward``.

A wrapper is one of Gymnasium's (``gymnasium.wrappers.vector``), by its name and with its arguments; the table that
applies them is ``vector_envs.wrappers``. Wrappers that normalise are missing on purpose: their statistics would stay
inside one actor. ``policy.normalise_observations`` and ``workload.reward`` do the same with statistics that actors and
learner share.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError

Size = Annotated[int, msgspec.Meta(ge=1, le=65536)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=8)]
Dtype = Literal["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]


class FilterObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Keep only some parts of a Dict or Tuple observation.

    ``filter_keys``: names of a Dict's parts, or positions in a Tuple.
    """

    filter_keys: Annotated[tuple[str | int, ...], msgspec.Meta(min_length=1, max_length=256)]


class FlattenObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Make one vector of an observation of any kind; Discrete parts become one-hot."""


class GrayscaleObservation(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True
):
    """Make a colour image (height, width, 3) grey. ``keep_dim``: keep a last axis of length 1."""

    keep_dim: bool = False


class ResizeObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Resize an image with OpenCV, which no extra installs. ``shape``: height and width in pixels."""

    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=2, max_length=2)]


class ReshapeObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Give a Box observation another ``shape`` with as many components."""

    shape: Shape


class RescaleObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Map a Box observation linearly from its bounds, which must be finite, to ``min_obs`` and ``max_obs``."""

    min_obs: float
    max_obs: float


class DtypeObservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Convert observations to another ``dtype``."""

    dtype: Dtype


class ClipAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Declare a Box action unbounded, and clip what is sent to the environment's own bounds."""


class RescaleAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=True):
    """Map a Box action linearly from ``min_action`` and ``max_action`` to the environment's own, finite bounds."""

    min_action: float
    max_action: float


WrapperSettings: TypeAlias = (
    FilterObservation
    | FlattenObservation
    | GrayscaleObservation
    | ResizeObservation
    | ReshapeObservation
    | RescaleObservation
    | DtypeObservation
    | ClipAction
    | RescaleAction
)


class RewardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the learner makes of each reward before it computes targets. Records and returns keep the raw rewards.

    In this order: ``normalise`` divides by the running standard deviation of the discounted return, for environments
    whose rewards have unknown or changing scale; ``scale`` multiplies; ``sign`` keeps only the sign, as for Atari;
    ``clip`` limits the size to this value (0: no limit). Values that are scaled otherwise belong to another run: a
    value function that was trained on them does not carry over.
    """

    scale: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] = 1.0
    clip: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 0.0
    sign: bool = False
    normalise: bool = False

    def __post_init__(self) -> None:
        """Refuse settings of which one would undo the other.

        Raises:
            ConfigError: ``sign`` is set with a scale, a clip or normalisation.
        """
        if self.sign and (self.normalise or self.clip or self.scale != 1.0):
            raise ConfigError(
                "workload.reward.sign is set with another change of the reward",
                why="only the sign remains, so that scale, clip and normalise would change nothing",
                fix="keep sign, or remove it and keep the others",
            )
