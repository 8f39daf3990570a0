"""The GPUs that plans know: memory, and the peaks from their data sheets."""

import re

import msgspec

from tidegate.core.errors import ConfigError

GB = 1e9
GIB = float(1 << 30)


class Accelerator(msgspec.Struct, frozen=True):
    """One GPU. ``memory_bytes`` as the driver reports it; rates are peaks of the vendor's data sheet, dense.

    ``bfloat16_flops``: of tensor cores. ``float32_flops``: without TF32, in which the head is computed.
    """

    name: str
    memory_bytes: float
    bfloat16_flops: float
    float32_flops: float
    bytes_per_s: float

    def peak_flops(self, *, width_bytes: int) -> float:
        """Of products of numbers of this width."""
        return self.bfloat16_flops if width_bytes < 4 else self.float32_flops


# Data sheets of the vendor; memory is the advertised GB less what the driver keeps (an H100 of 80 GB reports 79.6 GiB).
ACCELERATORS: dict[str, Accelerator] = {
    each.name: each
    for each in (
        Accelerator("L4-24", 22.5 * GIB, 121e12, 30.3e12, 0.30e12),
        Accelerator("A10G-24", 22.5 * GIB, 70e12, 31.2e12, 0.60e12),
        Accelerator("A100-40", 39.5 * GIB, 312e12, 19.5e12, 1.55e12),
        Accelerator("L40S-48", 44.9 * GIB, 362e12, 91.6e12, 0.86e12),
        Accelerator("A100-80", 79.2 * GIB, 312e12, 19.5e12, 2.04e12),
        Accelerator("H100-80", 79.6 * GIB, 989e12, 67e12, 3.35e12),
        Accelerator("H200-141", 139.8 * GIB, 989e12, 67e12, 4.80e12),
        Accelerator("B200-180", 178.4 * GIB, 2250e12, 80e12, 8.00e12),
    )
}


def accelerator_of(device_name: str, memory_bytes: float) -> Accelerator | None:
    """The GPU that torch's name means, with the memory nearest to its own; None for one that plans do not know."""
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    named = [gpu for gpu in ACCELERATORS.values() if gpu.name.partition("-")[0].lower() in words]
    return min(named, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes), default=None)


class Gpus(msgspec.Struct, frozen=True):
    """A number of equal GPUs."""

    count: int
    kind: Accelerator


def parse_gpus(text: str) -> Gpus:
    """``8xH100-80``, or ``H100-80`` for one.

    Raises:
        ConfigError: the kind is unknown, or the number is none.
    """
    found = re.fullmatch(r"(?:(\d{1,5})\s*[x×*]\s*)?([A-Za-z0-9]+-\d+)", text.strip())
    kinds = {name.lower(): kind for name, kind in ACCELERATORS.items()}
    if found is None or found[2].lower() not in kinds or found[1] == "0":
        raise ConfigError(
            f"{text[:40]!r} are no GPUs that the planner knows",
            fix=f"write a number and a kind as 8xH100-80; kinds: {', '.join(ACCELERATORS)}",
        )
    return Gpus(count=int(found[1] or 1), kind=kinds[found[2].lower()])


_UNITS = {"": 1, "k": 1024}


def parse_tokens(text: str) -> int:
    """Tokens of ``16k`` (16,384) or ``4096``.

    Raises:
        ConfigError: it is no number of tokens.
    """
    found = re.fullmatch(r"(\d{1,9})(k?)", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"{text[:40]!r} is no number of tokens", fix="write it as 16k or 4096")
    return int(found[1]) * _UNITS[found[2]]


_BYTES = {
    "": 1,
    **{name: 1000**power for power, name in enumerate("kMGT", 1)},
    **{f"{name}i": 1024**power for power, name in enumerate("KMGT", 1)},
}


def parse_bytes(text: str) -> float:
    """Bytes of ``16Gi``, ``1.5T`` or ``17179869184``, as Kubernetes writes memory and disk.

    Raises:
        ConfigError: it is no such quantity.
    """
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,9})?)([kMGT]|[KMGT]i)?", text.strip())
    if found is None or float(found[1]) == 0.0:
        raise ConfigError(f"{text[:40]!r} is no size", fix="write it as 16Gi, 500G or a number of bytes")
    return float(found[1]) * _BYTES[found[2] or ""]
