"""What a function of this room checks on its first lines: that its tensors are what it was written for."""

from torch import Tensor


def check_shapes(expected: tuple[int, ...], **tensors: Tensor) -> None:
    """Refuse tensors of another shape than ``expected``: broadcasting would hide the mistake in a plausible number.

    Raises:
        ValueError: a tensor has another shape; the message names it.
    """
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {expected}")


def check_floating(**tensors: Tensor) -> None:
    """Refuse integer tensors where a logprob, reward or value belongs.

    Raises:
        ValueError: a tensor is not of a floating type; the message names it.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}, expected a floating type")
