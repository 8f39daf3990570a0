"""Looks at this machine for ``tidegate doctor``; ``core.doctor`` judges what is found. Starts nothing, changes nothing.

Each probe is bounded: by a deadline, or by the bytes that it writes and removes.
"""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import resource
import secrets
import socket
import time
from pathlib import Path

import grpc

from tidegate.core.doctor import GpuFacts, RdmaFacts, VolumeFacts
from tidegate.core.errors import TidegateError

PEER_TIMEOUT_S = 5.0
# Written, synced and removed: more than the cache of a disk's controller, less than a minute on the slowest.
VOLUME_BYTES = 64 << 20
SHM = Path("/dev/shm")
RDMA_ADAPTERS = Path("/sys/class/infiniband")
RDMA_VERBS = Path("/dev/infiniband")


def probe_gpus() -> GpuFacts:
    """The driver, and what torch finds; without torch only the driver."""
    if importlib.util.find_spec("torch") is None:
        return GpuFacts()
    from tidegate.models.devices import find_cuda, find_devices

    cuda = find_cuda()
    return GpuFacts(
        driver=cuda.driver,
        torch=cuda.torch,
        torch_cuda=cuda.torch_cuda,
        devices=find_devices(cuda.num_devices),
    )


def probe_shared_memory() -> int | None:
    """Size of ``/dev/shm`` in bytes; None without one."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def probe_rdma() -> RdmaFacts:
    """RDMA adapters, and what this process may do with them."""
    adapters = tuple(sorted(path.name for path in RDMA_ADAPTERS.iterdir())) if RDMA_ADAPTERS.is_dir() else ()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return RdmaFacts(adapters, RDMA_VERBS.is_dir(), None if limit == resource.RLIM_INFINITY else limit)


def probe_port(port: int) -> str:
    """Why nothing can listen on a port; empty where it is free."""
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return ""


def probe_volume(folder: Path) -> VolumeFacts:
    """Write ``VOLUME_BYTES`` durably into a folder, and remove them."""
    path = folder / f".tidegate-doctor-{secrets.token_hex(4)}"
    block = secrets.token_bytes(1 << 20)
    started_s = time.monotonic()
    try:
        with path.open("wb") as file:
            for _ in range(VOLUME_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.monotonic() - started_s
    except OSError as error:
        return VolumeFacts(str(folder), problem=f"it cannot be written: {error.strerror}")
    finally:
        with contextlib.suppress(OSError):  # nothing was written: it is read-only, or no folder
            path.unlink()
    return VolumeFacts(str(folder), mb_per_s=VOLUME_BYTES / 1e6 / seconds)


async def probe_address(address: str) -> str:
    """Why no connection to host:port opens; empty where one does. A connection only: no call, no credential."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                await channel.channel_ready()
        except TimeoutError:
            return f"no connection opened within {PEER_TIMEOUT_S:g} s"
    return ""


def probe_model(folder: Path | None) -> tuple[str | None, str]:
    """The digest of a model's folder, or why there is none."""
    if folder is None:
        return None, ""
    from tidegate.models.model_folder import folder_digest

    try:
        return folder_digest(folder), ""
    except (TidegateError, OSError) as error:
        return None, str(error)


def probe_vllm() -> str | None:
    """The version of vLLM in this image."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
