"""Checks of tensors' shapes and dtypes, on the first lines of functions in this package."""

from torch import Tensor


def check_shapes(expected: tuple[int, ...], **tensors: Tensor) -> None:
    """Reject tensors of another shape than ``expected``: broadcasting would hide the mistake.

    Raises:
        ValueError: a tensor has another shape; the message names it.
    """
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {expected}")


def check_floating(**tensors: Tensor) -> None:
    """Reject integer tensors for logprobs, rewards and values.

    Raises:
        ValueError: a tensor is not of a floating type; the message names it.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}, expected a floating type")
