"""A second device for tests: ``accel`` computes on the CPU, and refuses what a CUDA device refuses.

Its tensors are wrappers whose numbers are in ordinary memory, so that whole updates run on it and give the CPU's bits.
What mixes it with tensors of the CPU raises ``MixedDevicesError``, by CUDA's rules: only copies, indices of its tensors
and single numbers of elementwise operations may be on the CPU, and a generator must be on the device of what it fills.
``FakeTensorMode`` is no substitute: it lets ``stack`` of CPU and CUDA numbers pass, and computes nothing.

PyTorch takes backends written in Python in this way (``torch.utils.backend_registration``).
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportIncompatibleMethodOverride=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
# (torch leaves the types of its dispatch open)

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.utils import backend_registration

NAME = "accel"
# Copies between devices.
_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::_copy_from"})
# Their indices may be on the CPU; what is indexed, and what is written, may not.
_INDEXING = frozenset({"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"})


class MixedDevicesError(RuntimeError):
    """An operation got tensors, or a generator, of the CPU and of the second device."""


class AccelTensor(Tensor):
    """A tensor of the second device; ``inner`` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "AccelTensor":
        made = cast("Any", torch.Tensor)._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=second_device(),
        )
        made.inner = inner
        return cast("AccelTensor", made)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute on the inner tensors, after a check that the devices are not mixed."""
        del cls, types
        return _compute(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"AccelTensor({self.inner!r})"

    def __format__(self, format_spec: str) -> str:
        return format(self.inner, format_spec)


class _Module(backend_registration._DummyBackendModule):
    """What torch asks a backend for, beside its operations."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Of mixed precision."""
        return [torch.bfloat16]


def second_device() -> torch.device:
    """The device, registered by its first use; one a process, as torch allows."""
    if not hasattr(torch, NAME):
        backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        _register()
    return torch.device(NAME, 0)


# Operations without a tensor of the device: those that make one. All others reach ``__torch_dispatch__``.
_FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "arange",
    "arange.start",
    "arange.start_step",
    "randperm",
    "randperm.generator",
)
_KERNELS = torch.library.Library("aten", "IMPL")


def _register() -> None:
    for name in _FACTORIES:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet), overload or "default")
        _KERNELS.impl(name, partial(_make, func), "PrivateUse1")
    _KERNELS.impl("_copy_from", _copy_from, "PrivateUse1")
    # Of backends other than the CPU torch expects fused cells; these are the same from elementary operations.
    _KERNELS.impl("lstm.data", decompositions.lstm_data_impl, "AutogradPrivateUse1")
    _KERNELS.impl("gru.data", decompositions.gru_impl_data, "AutogradPrivateUse1")


def _make(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _compute(func, args, kwargs)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    del non_blocking
    _inner(target).copy_(_inner(source))
    return target


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _check(func, args, kwargs)
    wrappers = {id(leaf.inner): leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, AccelTensor)}
    wanted = kwargs.get("device")
    is_for_cpu = wanted is not None and torch.device(wanted).type == "cpu"
    given = {**kwargs, "device": torch.device("cpu")} if wanted is not None else kwargs
    inner = func(*_mapped(_inner, args), **_mapped(_inner, given))
    if func._schema.name == "aten::copy_":
        return args[0]  # the result is where it was copied to
    if is_for_cpu:
        # Never the memory of the device itself, which changes there later.
        return _mapped(lambda value: value.clone() if isinstance(value, Tensor) else value, inner)
    return _mapped(lambda value: _outer(value, wrappers), inner)


def _leaves(values: Any) -> list[Any]:
    """What lists, tuples and mappings hold, of any depth. torch's own trees take half of the tests' CPU time."""
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return [values]
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple, dict)):
            found += _leaves(value)
        else:
            found.append(value)
    return found


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """The same lists, tuples and mappings with each leaf changed."""
    if isinstance(values, dict):
        return {name: _mapped(change, value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        changed = [_mapped(change, value) for value in values]
        return changed if type(values) is list else type(values)(changed)
    return change(values)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, AccelTensor) else value


def _outer(value: Any, wrappers: Mapping[int, Tensor]) -> Any:
    """The wrapper of a result; of one that was changed in place, its own."""
    if not isinstance(value, Tensor):
        return value
    return wrappers[id(value)] if id(value) in wrappers else AccelTensor(value)


def _check(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    name = func._schema.name
    if name in _COPIES:
        return
    leaves = _leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, AccelTensor)]
    makes_here = "device" in kwargs and torch.device(kwargs["device"] or "cpu").type == NAME
    if not here and not makes_here:
        return
    if any(isinstance(leaf, torch.Generator) and leaf.device.type != NAME for leaf in leaves):
        raise MixedDevicesError(f"{name} on {NAME} got a generator of the CPU")
    if name in _INDEXING:
        leaves = [args[0], *args[2:]]
    elsewhere = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, AccelTensor)]
    if torch.Tag.pointwise in func.tags:
        elsewhere = [leaf for leaf in elsewhere if leaf.dim()]
    if elsewhere:
        shapes = [tuple(leaf.shape) for leaf in elsewhere]
        raise MixedDevicesError(f"{name} got tensors of {NAME}, and of the CPU those of shapes {shapes}")
