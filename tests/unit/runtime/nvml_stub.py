"""A driver's library without a driver, in place of ``pynvml``."""

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml has it."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 (pynvml's name)
    """As pynvml has it."""


class FakeNvml:
    """``gpus``: utilisation in percent, None where the driver does not say. ``lost``: places that answer no more."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self, *gpus: int | None, without_driver: bool = False) -> None:
        self.gpus = list(gpus)
        self.lost: set[int] = set()
        self._without_driver = without_driver

    def nvmlInit(self) -> None:
        if self._without_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle:04d}-ab"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle in self.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=(handle + 1) << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        percent = self.gpus[handle]
        if percent is None:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(gpu=percent)
