"""Which device a process computes on, and why; a GPU that was asked for and cannot be used is an error with its reason.

Torch falls back to the CPU with a warning at most: a driver too old for its CUDA build, a pod without its GPU. A run
would train a hundred times slower and say so nowhere.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import torch

from tidegate.core.doctor import OLDEST_DRIVER, Device
from tidegate.core.errors import ConfigError

DeviceSetting: TypeAlias = Literal["auto", "cpu", "cuda"]
# What ``auto`` means in this process. The chart sets it to ``cuda`` in pods to which it gives a GPU.
DEVICE_VARIABLE = "TIDEGATE_DEVICE"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")


class CudaState(msgspec.Struct, frozen=True):
    """What torch and the machine say about CUDA.

    ``num_devices``: that torch can use. ``torch_cuda``: the version that torch is built for; empty for a build without
    CUDA. ``driver``: the version of NVIDIA's kernel driver; empty if none is loaded. ``warning``: torch's reason for
    finding none. ``torch``: its version.
    """

    num_devices: int
    name: str = ""
    torch_cuda: str = ""
    driver: str = ""
    warning: str = ""
    torch: str = ""


class ChosenDevice(msgspec.Struct, frozen=True):
    """``device`` as torch names it, and ``why`` in words for the log."""

    device: str
    why: str

    def torch_device(self) -> torch.device:
        """The device; of several of the machine the one of this rank becomes the current one."""
        device = torch.device(self.device)
        if ":" in self.device:
            torch.cuda.set_device(device)
        return device


def find_cuda() -> CudaState:
    """Ask torch and the kernel; loads the CUDA library where there is one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return CudaState(
        num_devices=num_devices,
        name=torch.cuda.get_device_name(0) if num_devices else "",
        torch=str(torch.__version__),
        torch_cuda=torch.version.cuda or "",
        driver=driver_version(_read(_DRIVER_FILE)),
        warning=" ".join(str(each.message).partition("\n")[0] for each in caught),
    )


def find_devices(count: int) -> tuple[Device, ...]:
    """The first ``count`` GPUs, with the memory that is free on each and the others that it reaches."""
    devices: list[Device] = []
    for index in range(count):
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        others = [other for other in range(count) if other != index]
        devices.append(
            Device(
                name=torch.cuda.get_device_name(index),
                capability=torch.cuda.get_device_capability(index),
                total_bytes=total_bytes,
                free_bytes=free_bytes,
                peers=tuple(o for o in others if torch.cuda.can_device_access_peer(index, o)),
            )
        )
    return tuple(devices)


def choose_device(
    wanted: DeviceSetting,
    *,
    setting: str,
    cuda: CudaState,
    environ: Mapping[str, str],
    local_rank: int | None = None,
) -> ChosenDevice:
    """The device of this process; with ``local_rank`` each rank of a machine has its own.

    ``setting``: the name of ``wanted`` in the run file, for errors. ``auto`` is ``DEVICE_VARIABLE`` of ``environ`` if
    that is set, else CUDA where torch can use it.

    Raises:
        ConfigError: CUDA is asked for and there is no device, or fewer than ranks.
    """
    asked = environ.get(DEVICE_VARIABLE, "") if wanted == "auto" else ""
    if asked not in {"", "cpu", "cuda"}:
        raise ConfigError(f"{DEVICE_VARIABLE} is {asked!r}", fix="set it to cpu or cuda, or leave it out")
    by = f"{DEVICE_VARIABLE} is {asked}" if asked else f"{setting} is {wanted}"
    named = asked or wanted
    if named == "cpu":
        return ChosenDevice("cpu", by)
    if not cuda.num_devices:
        if named == "cuda":
            raise ConfigError(
                f"{by}, and torch finds no CUDA device", why=_why(cuda), fix=_fix(cuda, setting)
            )
        return ChosenDevice("cpu", f"{by}, and torch finds no CUDA device: {_why(cuda)}")
    if local_rank is None:
        return ChosenDevice("cuda", f"{by}, and torch finds {cuda.name}")
    if local_rank >= cuda.num_devices:
        raise ConfigError(
            f"Rank {local_rank} of this machine finds {cuda.num_devices} CUDA devices",
            why="each rank computes on a device of its own",
            fix="start one rank per device (--nproc-per-node)",
        )
    return ChosenDevice(f"cuda:{local_rank}", f"{by}, and this is rank {local_rank} of its devices")


def driver_version(text: str) -> str:
    """The version in the text of ``/proc/driver/nvidia/version``; empty without one."""
    found = _DRIVER_VERSION.search(text)
    return found[1] if found else ""


def _why(cuda: CudaState) -> str:
    if not cuda.torch_cuda:
        return "this torch is built without CUDA"
    driver = f"the NVIDIA driver is {cuda.driver}" if cuda.driver else "no NVIDIA driver is loaded"
    warning = f" ({cuda.warning})" if cuda.warning else ""
    return f"torch is built for CUDA {cuda.torch_cuda}, and {driver}{warning}"


def _fix(cuda: CudaState, setting: str) -> str:
    on_cpu = f"or set {setting} to cpu to train without a GPU"
    if not cuda.torch_cuda:
        return f"use an image with a CUDA build of torch (tidegate-learner-gpu, tidegate-actor-gpu), {on_cpu}"
    oldest = OLDEST_DRIVER.get(cuda.torch_cuda.partition(".")[0])
    if not cuda.driver:
        return (
            "give the process a GPU (in a pod a limit of nvidia.com/gpu, and the node NVIDIA's driver, container"
            f" toolkit and device plugin), {on_cpu}"
        )
    if oldest is not None and int(cuda.driver.partition(".")[0]) < oldest:
        return (
            f"install driver R{oldest} or newer on the node, use an image with torch for an older CUDA version,"
            f" {on_cpu}"
        )
    return f"look at nvidia-smi in this container and at CUDA_VISIBLE_DEVICES, {on_cpu}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
