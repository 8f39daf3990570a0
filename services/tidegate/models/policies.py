"""The policies of segments by ``policy.kind``: one literal table. A new network is a file and a line here."""

from collections.abc import Callable
from typing import Literal, Protocol

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, EnvironmentDescription
from tidegate.models.activations import Activation
from tidegate.models.cnn import CnnPolicy
from tidegate.models.convolutions import NetworkName
from tidegate.models.distributions import ActionDistribution, action_distribution
from tidegate.models.epsilon_greedy import epsilon_greedy
from tidegate.models.feature_layers import DenseFeatures, FeatureLayers
from tidegate.models.gaussian import SquashedGaussian
from tidegate.models.image_features import ImageFeatures
from tidegate.models.layered import LayeredPolicy
from tidegate.models.memory_cells import Cell
from tidegate.models.mlp import MlpPolicy
from tidegate.models.own_layers import LayerCode, OwnLayers
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.q_network import QNetwork
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.models.recurrent_q import RecurrentQNetwork


class SegmentPolicySettings(Protocol):
    """The run file's ``policy`` of segments."""

    @property
    def kind(self) -> str:
        """The network."""
        ...

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of each layer."""
        ...

    @property
    def activation(self) -> Activation:
        """Between the layers."""
        ...

    @property
    def input_scale(self) -> tuple[float, ...]:
        """Factor of each input; empty for none."""
        ...

    @property
    def normalise_observations(self) -> bool:
        """Whether inputs are normalised by running statistics."""
        ...

    @property
    def network(self) -> NetworkName:
        """Convolutions of images."""
        ...

    @property
    def features(self) -> int:
        """Units of the layer after the convolutions; 0 for the published size."""
        ...

    @property
    def memory(self) -> Literal["none", "gru", "lstm"]:
        """A recurrent cell between the layers and the heads."""
        ...

    @property
    def memory_units(self) -> int:
        """Units of the cell."""
        ...

    @property
    def squash_actions(self) -> bool:
        """Whether continuous actions are bounded by tanh."""
        ...

    @property
    def action_values(self) -> bool:
        """Whether layers of a user's own make the values of actions."""
        ...


def mlp(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """Dense layers over flat observations, with a recurrent cell if ``policy.memory`` names one.

    Raises:
        ConfigError: the settings do not fit the environment.
    """
    actions = action_distribution(description.action_space, squash=settings.squash_actions)
    if settings.memory != "none":
        layers = _dense_features(description, settings)
        return _with_memory(description, settings, actions, layers, cell=settings.memory)
    return _dense(description, settings, actions)


def cnn(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """Convolutions over images, and one dense layer, with a recurrent cell if ``policy.memory`` names one.

    Raises:
        ConfigError: the settings do not fit the environment, or are those of another kind.
    """
    actions = action_distribution(description.action_space, squash=settings.squash_actions)
    if settings.memory != "none":
        layers = _image_features(description, settings)
        return _with_memory(description, settings, actions, layers, cell=settings.memory)
    return _convolutional(description, settings, actions)


def q_mlp(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """The values of actions by dense layers, with a recurrent cell if ``policy.memory`` names one.

    Raises:
        ConfigError: the settings do not fit the environment, or its actions are not Discrete.
    """
    actions = epsilon_greedy(description.action_space, squash=settings.squash_actions)
    if settings.memory != "none":
        layers = _dense_features(description, settings)
        body = _with_memory(description, settings, actions, layers, cell=settings.memory)
        return RecurrentQNetwork(body, actions)
    return QNetwork(_dense(description, settings, actions), actions)


def q_cnn(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """The values of actions by convolutions, with a recurrent cell if ``policy.memory`` names one.

    Raises:
        ConfigError: as ``cnn``, or its actions are not Discrete.
    """
    actions = epsilon_greedy(description.action_space, squash=settings.squash_actions)
    if settings.memory != "none":
        layers = _image_features(description, settings)
        body = _with_memory(description, settings, actions, layers, cell=settings.memory)
        return RecurrentQNetwork(body, actions)
    return QNetwork(_convolutional(description, settings, actions), actions)


def squashed_mlp(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """Dense layers for continuous actions bounded by tanh, without a value: what soft actor-critic trains.

    Raises:
        ConfigError: the settings do not fit the environment, or its actions are not a Box with bounds.
    """
    return _dense(description, settings, _squashed(description, settings), has_value=False)


def squashed_cnn(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SegmentPolicy:
    """As ``squashed_mlp``, by convolutions over images.

    Raises:
        ConfigError: as ``cnn``, or the actions are not a Box with bounds.
    """
    actions = _squashed(description, settings)
    images = _image_features(description, settings)
    return CnnPolicy(description, actions, images=images, has_value=False)


def _own(
    description: EnvironmentDescription, settings: SegmentPolicySettings, code: LayerCode
) -> SegmentPolicy:
    """Layers of a user's ``code`` below a policy and a value, with a recurrent cell if ``policy.memory`` names one.

    With ``policy.action_values`` below the values of actions.

    Raises:
        ConfigError: the settings do not fit the environment, or the code is no network.
    """
    layers = OwnLayers(
        description,
        code,
        written=settings.kind,
        input_scale=settings.input_scale,
        normalise_observations=settings.normalise_observations,
    )
    if settings.action_values:
        values = epsilon_greedy(description.action_space, squash=settings.squash_actions)
        if settings.memory != "none":
            body = _with_memory(description, settings, values, layers, cell=settings.memory)
            return RecurrentQNetwork(body, values)
        return QNetwork(LayeredPolicy(description, values, layers=layers), values)
    actions = action_distribution(description.action_space, squash=settings.squash_actions)
    if settings.memory != "none":
        return _with_memory(description, settings, actions, layers, cell=settings.memory)
    return LayeredPolicy(description, actions, layers=layers)


def _squashed(description: EnvironmentDescription, settings: SegmentPolicySettings) -> SquashedGaussian:
    network = settings.kind.removeprefix("squashed_")
    if settings.memory != "none":
        raise ConfigError(
            f"policy.memory is set with policy.kind {settings.kind}",
            why="its transitions are drawn one by one, without what came before",
            fix=f"remove policy.memory; stack frames (workload.frame_stack), or set policy.kind to {network}",
        )
    if not isinstance(description.action_space, BoxSpace):
        raise ConfigError(
            f"policy.kind {settings.kind} needs continuous actions",
            why=f"the actions of {description.env_id} are {description.action_space}",
            fix=f"set policy.kind to {network} or q_{network}",
        )
    return SquashedGaussian(description.action_space)


def _dense(
    description: EnvironmentDescription,
    settings: SegmentPolicySettings,
    actions: ActionDistribution,
    *,
    has_value: bool = True,
) -> MlpPolicy:
    return MlpPolicy(
        description,
        actions,
        hidden=settings.hidden,
        activation=settings.activation,
        input_scale=settings.input_scale,
        normalise_observations=settings.normalise_observations,
        has_value=has_value,
    )


def _dense_features(description: EnvironmentDescription, settings: SegmentPolicySettings) -> DenseFeatures:
    return DenseFeatures(
        description,
        hidden=settings.hidden,
        activation=settings.activation,
        input_scale=settings.input_scale,
        normalise_observations=settings.normalise_observations,
    )


def _convolutional(
    description: EnvironmentDescription, settings: SegmentPolicySettings, actions: ActionDistribution
) -> CnnPolicy:
    return CnnPolicy(description, actions, images=_image_features(description, settings))


def _image_features(description: EnvironmentDescription, settings: SegmentPolicySettings) -> ImageFeatures:
    if settings.input_scale:
        raise ConfigError(
            f"policy.input_scale is set with policy.kind {settings.kind}",
            why="pixels are always scaled to 0 to 1",
            fix="remove it; policy.normalise_observations is for the parts of observations that are no images",
        )
    return ImageFeatures(
        description,
        network=settings.network,
        features=settings.features,
        normalise_observations=settings.normalise_observations,
    )


def _with_memory(
    description: EnvironmentDescription,
    settings: SegmentPolicySettings,
    actions: ActionDistribution,
    layers: FeatureLayers,
    *,
    cell: Cell,
) -> RecurrentPolicy:
    return RecurrentPolicy(description, actions, layers=layers, cell=cell, num_units=settings.memory_units)


POLICIES: dict[str, Callable[[EnvironmentDescription, SegmentPolicySettings], SegmentPolicy]] = {
    "mlp": mlp,
    "cnn": cnn,
    "q_mlp": q_mlp,
    "q_cnn": q_cnn,
    "squashed_mlp": squashed_mlp,
    "squashed_cnn": squashed_cnn,
}


def build_policy(
    description: EnvironmentDescription, settings: SegmentPolicySettings, *, code: LayerCode | None = None
) -> SegmentPolicy:
    """The policy that a run file describes, for its environment. ``code``: of a kind of a user's own.

    Raises:
        ConfigError: the kind is not for segments, it does not fit the environment, or its code fails.
    """
    if code is not None:
        return _own(description, settings, code)
    if settings.kind not in POLICIES:
        raise ConfigError(
            f"A policy of the kind {settings.kind} cannot run segments",
            why=f"models/policies.py has {', '.join(POLICIES)}",
            fix="set policy.kind to one of them, or workload.kind to text",
        )
    return POLICIES[settings.kind](description, settings)
