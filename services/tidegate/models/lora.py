"""Low-rank adapters on the linear layers of a frozen network, after Hu 2021; the layers are peft's.

An adapter adds ``B(A(x)) * alpha / rank`` to its layer's output. B starts at zero, so a fresh one changes nothing.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from tidegate.core.errors import ConfigError

ADAPTER = "default"

# Of the initial A, as in torch's linear layers.
A_SLOPE: float = 5.0**0.5


def add_adapters(
    network: nn.Module,
    *,
    rank: int,
    alpha: float,
    targets: tuple[str, ...],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """Add adapters to the layers named in ``targets``, in place; returns their float32 parameters by name.

    Without targets every linear layer but the head gets one. Names are those of the network's layers,
    followed by ``lora_A.weight`` or ``lora_B.weight``: with the prefix ``base_model.model.`` other programs read them
    as an adapter file. The rest of the network is frozen. A is drawn from ``generator`` (torch's global one
    without).

    Raises:
        ConfigError: a target names no linear layer.
    """
    settings = LoraConfig(
        r=rank,
        lora_alpha=cast("int", alpha),  # any number works, despite its annotation
        target_modules=list(targets) or "all-linear",
        bias="none",
    )
    _check_targets(network, targets)
    inject_adapter_in_model(settings, cast("Any", network), adapter_name=ADAPTER)
    adapters: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        is_adapter = f".{ADAPTER}." in name and ".lora_" in name
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            # Steps are too small for bfloat16, which would round most of them away.
            parameter.data = parameter.data.float()
            adapters[name.replace(f".{ADAPTER}.", ".")] = parameter
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(parameter, a=A_SLOPE, generator=generator)
    return adapters


@contextmanager
def adapters_off(network: nn.Module) -> Generator[None, None, None]:
    """A context in which the adapters are disabled."""
    layers = [module for module in network.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


def _check_targets(network: nn.Module, targets: tuple[str, ...]) -> None:
    """Check every target: peft accepts the list if one exists, and silently ignores a misspelt one."""
    modules = dict(cast("Any", network).named_modules())
    linear: list[str] = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            raise ConfigError(
                f"policy.lora.targets names {target!r}, and the model has no linear layer of that name",
                why=f"they are {', '.join(sorted({name.rsplit('.', 1)[-1] for name in linear}))}",
                fix="use some of these names, or leave the list empty for all of them but the head",
            )
