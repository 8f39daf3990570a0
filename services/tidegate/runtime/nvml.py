"""What NVIDIA's management library (NVML) says of the GPUs of this process. Needs the driver, and no CUDA context."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# A machine has at most 16; more are not looked at.
GPUS_MAX = 64


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU, by its place among those that this process sees.

    ``busy_ratio``: share of the driver's last sampling period (up to a second) in which a kernel ran; None where it
    does not say, as of a part of a GPU (MIG). ``memory_used_bytes``: by all processes.
    """

    index: int
    busy_ratio: float | None
    memory_used_bytes: int
    memory_bytes: int


class GpuReader:
    """Reads the GPUs that this process sees. Each call takes milliseconds, so services make it in a thread."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        """``nvml``: the module ``pynvml``, which is open. ``handles``: of the GPUs, in the order of CUDA's numbers."""
        self._nvml = nvml
        self._handles = handles

    def read(self) -> list[GpuReading]:
        """Every GPU now.

        Raises:
            OSError: the driver does not answer, such as for a GPU that fell off the bus.
        """
        nvml = self._nvml
        found: list[GpuReading] = []
        try:
            for index, handle in enumerate(self._handles):
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                found.append(GpuReading(index, self._busy_ratio(handle), int(memory.used), int(memory.total)))
        except nvml.NVMLError as error:
            raise OSError(f"GPU {len(found)} cannot be read: {error}") from error
        return found

    def _busy_ratio(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0
        except self._nvml.NVMLError_NotSupported:
            return None


def open_gpus(*, load: Callable[[str], Any] = import_module) -> GpuReader | None:
    """A reader of the GPUs that this process sees; None without a driver, a GPU or the package nvidia-ml-py."""
    try:
        nvml = load("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(n) for n in range(min(GPUS_MAX, nvml.nvmlDeviceGetCount()))
        ]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except nvml.NVMLError:
        return None
    places = visible_places(os.environ.get(VISIBLE_VARIABLE), uuids)
    return GpuReader(nvml, [handles[place] for place in places]) if places else None


def visible_places(visible: str | None, uuids: Sequence[str]) -> list[int]:
    """The places in ``uuids`` of the GPUs that ``CUDA_VISIBLE_DEVICES`` names; all of them where it is not set.

    As CUDA reads it: numbers or beginnings of UUIDs, and nothing after the first one that names no GPU. Numbers are
    NVML's, which are CUDA's where all GPUs of a machine are alike.
    """
    if visible is None:
        return list(range(len(uuids)))
    places: list[int] = []
    for name in (each.strip() for each in visible.split(",")):
        if name.isdecimal() and int(name) < len(uuids):
            found = [int(name)]
        else:
            found = [place for place, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(found) != 1:
            break
        places += found
    return list(dict.fromkeys(places))
