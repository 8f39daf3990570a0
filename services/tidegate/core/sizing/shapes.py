"""The shape of a decoder-only language model, and the numbers of parameters that follow from it."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes of a model of the Llama and Qwen family: attention and a gated MLP in each layer.

    ``tied``: the head is the embedding. ``biases``: query, key and value have biases.
    """

    name: str
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary_size: int
    context_length: int = 32_768
    tied: bool = False
    biases: bool = True

    @property
    def query_width(self) -> int:
        """Of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of all key heads together; values have the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def head_parameters(self) -> int:
        """Of the head, or of the embedding that is one."""
        return self.vocabulary_size * self.width

    @property
    def layer_matrices(self) -> int:
        """Parameters of the seven linear layers of one layer, without biases."""
        attention = 2 * self.width * self.query_width + 2 * self.width * self.kv_width
        return attention + 3 * self.width * self.mlp_width

    @property
    def matrices(self) -> int:
        """Parameters of the linear layers of all layers: what a token is multiplied with, besides the head."""
        return self.num_layers * self.layer_matrices

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        biases = self.query_width + 2 * self.kv_width if self.biases else 0
        layers = self.num_layers * (self.layer_matrices + biases + 2 * self.width)
        return layers + self.width + self.head_parameters * (1 if self.tied else 2)

    @property
    def untied_parameters(self) -> int:
        """All parameters as an inference server holds them, whose head is a tensor of its own."""
        return self.parameters + (self.head_parameters if self.tied else 0)

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank adapters on every linear layer but the head (``models.lora``)."""
        width, query, kv, mlp = self.width, self.query_width, self.kv_width, self.mlp_width
        sides = 2 * (width + query) + 2 * (width + kv) + 3 * (width + mlp)
        return self.num_layers * rank * sides


def _qwen(
    name: str, width: int, layers: int, heads: int, kv_heads: int, mlp: int, *, tied: bool
) -> ModelShape:
    return ModelShape(
        name=name,
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width // heads,
        mlp_width=mlp,
        vocabulary_size=151_936 if tied else 152_064,
        tied=tied,
    )


# Qwen2.5's config.json files. The table is by size, as people name these models.
SHAPES: dict[str, ModelShape] = {
    "0.5b": _qwen("Qwen2.5-0.5B", 896, 24, 14, 2, 4_864, tied=True),
    "1.5b": _qwen("Qwen2.5-1.5B", 1_536, 28, 12, 2, 8_960, tied=True),
    "3b": _qwen("Qwen2.5-3B", 2_048, 36, 16, 2, 11_008, tied=True),
    "7b": _qwen("Qwen2.5-7B", 3_584, 28, 28, 4, 18_944, tied=False),
    "14b": _qwen("Qwen2.5-14B", 5_120, 48, 40, 8, 13_824, tied=False),
    "32b": _qwen("Qwen2.5-32B", 5_120, 64, 40, 8, 27_648, tied=False),
    "72b": _qwen("Qwen2.5-72B", 8_192, 80, 64, 8, 29_568, tied=False),
}

_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")


def shape_by_name(name: str) -> ModelShape | None:
    """The shape of ``7b``, ``7B`` or ``Qwen2.5-7B``; None where it is no such name."""
    found = re.fullmatch(r"(?:qwen/?)?(?:qwen2\.5-)?(\d+(?:\.\d+)?b)(?:-instruct)?", name.strip().lower())
    return SHAPES.get(found[1]) if found else None


def shape_of_config(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape in a model folder's ``config.json``.

    Raises:
        ConfigError: a size is missing, or the model is a mixture of experts, whose memory these formulas do not give.
    """
    inner: Any = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    for key in _MIXTURES:
        if config.get(key):
            raise ConfigError(
                f"{name} is a mixture of experts ({key} {config[key]})",
                why="the plan's formulas are those of dense models",
                fix="plan with a dense model of as many active parameters, or measure",
            )
    try:
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
            name=name,
            width=width,
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or width // heads),
            mlp_width=int(config["intermediate_size"]),
            vocabulary_size=int(config["vocab_size"]),
            context_length=int(config.get("max_position_embeddings", 32_768)),
            tied=bool(config.get("tie_word_embeddings", False)),
            biases=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The config.json of {name} does not describe a decoder-only language model",
            why=f"{type(error).__name__}: {error}",
            fix=f"give a folder of such a model, or a size: {', '.join(SHAPES)}",
        ) from error
