"""What ``tidegate doctor`` concludes from what was found on a machine: one finding a check, and the fix of a fault.

Each check is a function of facts, so that every fault can be tried without the machine that has it. What the machine
does not have skips its check, with the reason.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

Outcome = Literal["pass", "fail", "skip"]

# The oldest driver branch of each CUDA major version (NVIDIA, CUDA compatibility: minor version compatibility).
OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}
# The first capability with bfloat16 (Ampere).
CAPABILITY_MIN = (8, 0)
# Of a GPU's memory; below it another process holds a part.
FREE_SHARE_MIN = 0.9
# NCCL and vLLM's workers exchange data there; the container runtime's own 64 MB end them.
SHM_BYTES_MIN = 1 << 30
# The version whose interface the engine `vllm` speaks (locks/vllm-cuda13.txt).
VLLM_VERSION = "0.32.0"
# Checkpoints and versions are written while training goes on; less makes the learner wait for its disk.
VOLUME_MB_PER_S_MIN = 20.0


class MachineFinding(msgspec.Struct, frozen=True):
    """One line of the doctor: what was found, and what to do where that fails."""

    check: str
    outcome: Outcome
    found: str
    fix: str = ""


class Device(msgspec.Struct, frozen=True):
    """A GPU as torch sees it. Memory in bytes; ``peers``: the indices of GPUs whose memory it reaches directly."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    peers: tuple[int, ...] = ()


class GpuFacts(msgspec.Struct, frozen=True):
    """``driver``: NVIDIA's kernel driver, empty if none is loaded. ``torch_cuda``: of the build, empty without CUDA.

    ``torch``: torch's version, None where it is not installed.
    """

    driver: str = ""
    torch: str | None = None
    torch_cuda: str = ""
    devices: tuple[Device, ...] = ()


def check_driver(facts: GpuFacts, *, wanted_gpus: int) -> MachineFinding:
    """Whether NVIDIA's driver is there, and new enough for the CUDA version that torch is built for."""
    if not facts.driver:
        if not wanted_gpus:
            return MachineFinding("driver", "skip", "no NVIDIA driver, and no GPU is expected here")
        return MachineFinding(
            "driver",
            "fail",
            "no NVIDIA driver is loaded",
            "give the container a GPU (limit nvidia.com/gpu), and the node NVIDIA's driver, container toolkit and"
            " device plugin",
        )
    oldest = OLDEST_DRIVER.get(facts.torch_cuda.partition(".")[0])
    if oldest is not None and int(facts.driver.partition(".")[0]) < oldest:
        return MachineFinding(
            "driver",
            "fail",
            f"NVIDIA's driver is {facts.driver}, and torch is built for CUDA {facts.torch_cuda}",
            f"install driver R{oldest} or newer on the node, or use an image built for an older CUDA version",
        )
    return MachineFinding("driver", "pass", f"NVIDIA's driver is {facts.driver}")


def check_torch(facts: GpuFacts, *, wanted_gpus: int) -> MachineFinding:
    """Whether torch is there, built for CUDA where GPUs are expected."""
    if facts.torch is None:
        return MachineFinding(
            "torch", "skip", "torch is not in this image; only learners and actors that compute need it"
        )
    if wanted_gpus and not facts.torch_cuda:
        return MachineFinding(
            "torch",
            "fail",
            f"torch {facts.torch} is built without CUDA",
            "use the image tidegate-learner-gpu or tidegate-actor-gpu",
        )
    build = f"for CUDA {facts.torch_cuda}" if facts.torch_cuda else "without CUDA"
    return MachineFinding("torch", "pass", f"torch {facts.torch}, built {build}")


def check_devices(facts: GpuFacts, *, wanted_gpus: int) -> MachineFinding:
    """Whether torch can use as many GPUs as expected."""
    found = len(facts.devices)
    if not wanted_gpus and not found:
        return MachineFinding("devices", "skip", "no GPU is expected here (--gpus)")
    names = ", ".join(sorted({device.name for device in facts.devices}))
    if found < wanted_gpus:
        return MachineFinding(
            "devices",
            "fail",
            f"torch can use {found} of {wanted_gpus} GPUs{f' ({names})' if names else ''}",
            "look at the lines driver and torch, at nvidia-smi in this container, and at CUDA_VISIBLE_DEVICES",
        )
    return MachineFinding("devices", "pass", f"{found} x {names}")


def check_capability(facts: GpuFacts) -> MachineFinding:
    """Whether every GPU computes in bfloat16."""
    if not facts.devices:
        return MachineFinding("capability", "skip", "torch can use no GPU")
    oldest = min(facts.devices, key=lambda device: device.capability)
    text = f"{oldest.name} has compute capability {oldest.capability[0]}.{oldest.capability[1]}"
    if oldest.capability < CAPABILITY_MIN:
        return MachineFinding(
            "capability",
            "fail",
            f"{text}, and bfloat16 needs 8.0",
            "set policy.dtype to float32, or use newer GPUs",
        )
    return MachineFinding("capability", "pass", text)


def check_gpu_memory(facts: GpuFacts) -> MachineFinding:
    """Whether the GPUs' memory is free."""
    if not facts.devices:
        return MachineFinding("gpu_memory", "skip", "torch can use no GPU")
    used = [
        f"GPU {index}: {(device.total_bytes - device.free_bytes) / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB"
        for index, device in enumerate(facts.devices)
        if device.free_bytes < FREE_SHARE_MIN * device.total_bytes
    ]
    if used:
        return MachineFinding(
            "gpu_memory",
            "fail",
            f"memory is in use: {'; '.join(used)}",
            "end the process that holds it (nvidia-smi names it), or give this one a GPU of its own",
        )
    least = min(device.free_bytes for device in facts.devices)
    return MachineFinding("gpu_memory", "pass", f"at least {least / 1e9:.1f} GB are free on each GPU")


def check_peers(facts: GpuFacts) -> MachineFinding:
    """Whether the GPUs of this machine reach one another directly (NVLink, or PCIe without a host in between)."""
    count = len(facts.devices)
    if count < 2:
        return MachineFinding("gpu_to_gpu", "skip", "there are no two GPUs here")
    apart = [
        f"{index}-{other}"
        for index, device in enumerate(facts.devices)
        for other in range(index + 1, count)
        if other not in device.peers
    ]
    if apart:
        return MachineFinding(
            "gpu_to_gpu",
            "fail",
            f"GPUs {', '.join(apart[:8])} do not reach each other's memory",
            "choose a machine with NVLink; else gradients go through host memory: look at `nvidia-smi topo -m`, and in"
            " a virtual machine at its PCIe access control",
        )
    return MachineFinding("gpu_to_gpu", "pass", f"all {count} GPUs reach each other's memory")


def check_shared_memory(size_bytes: int | None, *, wanted_gpus: int) -> MachineFinding:
    """Whether ``/dev/shm`` holds what NCCL and vLLM put there."""
    if size_bytes is None:
        return MachineFinding("shared_memory", "skip", "this system has no /dev/shm")
    text = f"/dev/shm has {size_bytes / 1e6:,.0f} MB"
    if not wanted_gpus:
        return MachineFinding("shared_memory", "skip", f"{text}; only processes on GPUs need more")
    if size_bytes < SHM_BYTES_MIN:
        return MachineFinding(
            "shared_memory",
            "fail",
            f"{text}, and NCCL and vLLM need {SHM_BYTES_MIN / 1e6:,.0f}",
            "set sharedMemory of the service in the chart's values, or --shm-size of the container",
        )
    return MachineFinding("shared_memory", "pass", text)


class RdmaFacts(msgspec.Struct, frozen=True):
    """``adapters``: what the kernel lists. ``verbs``: whether this process may open them (``/dev/infiniband``).

    ``memlock_bytes``: how much memory it may pin; None for any amount.
    """

    adapters: tuple[str, ...] = ()
    verbs: bool = False
    memlock_bytes: int | None = None


def check_rdma(facts: RdmaFacts) -> MachineFinding:
    """Whether adapters for direct memory access between machines can be used."""
    if not facts.adapters:
        return MachineFinding("rdma", "skip", "there are no RDMA adapters; ranks of several machines use TCP")
    names = ", ".join(facts.adapters)
    if not facts.verbs:
        return MachineFinding(
            "rdma",
            "fail",
            f"the node has {names}, and this process has no /dev/infiniband",
            "ask for the adapters in the pod's resources (rdma/...), by the device plugin of the cluster",
        )
    return MachineFinding("rdma", "pass", names)


def check_memlock(facts: RdmaFacts) -> MachineFinding:
    """Whether memory may be pinned, which RDMA needs."""
    if not facts.adapters:
        return MachineFinding("memlock", "skip", "without RDMA adapters nothing pins memory")
    if facts.memlock_bytes is not None:
        return MachineFinding(
            "memlock",
            "fail",
            f"this process may pin {facts.memlock_bytes / 1e6:,.1f} MB",
            "raise the limit to unlimited (LimitMEMLOCK of the container runtime), or add the capability IPC_LOCK",
        )
    return MachineFinding("memlock", "pass", "memory may be pinned without a limit")


def check_port(port: int, *, problem: str) -> MachineFinding:
    """Whether the ranks' rendezvous port is free. ``problem``: of the attempt to listen there, empty without."""
    if problem:
        return MachineFinding(
            "rendezvous_port",
            "fail",
            f"port {port}: {problem}",
            "end the process that listens there, or set MASTER_PORT",
        )
    return MachineFinding("rendezvous_port", "pass", f"port {port} is free")


class VolumeFacts(msgspec.Struct, frozen=True):
    """How fast a folder was written, durably (MB/s); ``problem``: why it could not be."""

    path: str
    mb_per_s: float = 0.0
    problem: str = ""


def check_volume(facts: VolumeFacts) -> MachineFinding:
    """Whether a volume can be written, at a rate that training does not wait for."""
    check = f"volume {facts.path}"
    if facts.problem:
        return MachineFinding(
            check, "fail", facts.problem, "mount it writable for this user, with free space"
        )
    text = f"{facts.mb_per_s:,.0f} MB/s"
    if facts.mb_per_s < VOLUME_MB_PER_S_MIN:
        return MachineFinding(
            check, "fail", f"only {text}", "use a storage class of faster disks for checkpoints and versions"
        )
    return MachineFinding(check, "pass", text)


def check_address(address: str, *, problem: str) -> MachineFinding:
    """Whether a peer's gRPC port answers. ``problem``: of the attempt, empty without."""
    check = f"peer {address}"
    if problem:
        return MachineFinding(
            check,
            "fail",
            problem,
            "look at the peer's log, its Service, DNS, and the network policies between the two",
        )
    return MachineFinding(check, "pass", "a connection opens")


def check_model(digest: str | None, *, expected: str, problem: str = "") -> MachineFinding:
    """Whether a model's folder is whole and the same everywhere. ``digest``: None without a folder."""
    if problem:
        return MachineFinding(
            "model", "fail", problem, "fill the model's volume again, or correct policy.path"
        )
    if digest is None:
        return MachineFinding("model", "skip", "no folder was given (--model)")
    if expected and digest != expected:
        return MachineFinding(
            "model",
            "fail",
            f"its digest is {digest}, not {expected}",
            "give all pods the same folder: the learner's and this one's differ in a config or in weights",
        )
    return MachineFinding("model", "pass", f"digest {digest}")


def check_vllm(version: str | None) -> MachineFinding:
    """Whether the installed vLLM is the one whose interface the engine speaks."""
    if version is None:
        return MachineFinding("vllm", "skip", "vLLM is not in this image; only the engine vllm needs it")
    if version.partition("+")[0] != VLLM_VERSION:
        return MachineFinding(
            "vllm",
            "fail",
            f"vLLM is {version}, and the engine speaks that of {VLLM_VERSION}",
            "use the image actor-vllm",
        )
    return MachineFinding("vllm", "pass", f"vLLM {version}")


def check_plan(run: str, *, problem: str) -> MachineFinding:
    """Whether the run fits this machine. ``run``: its file, empty without one; ``problem``: why it does not."""
    if not run:
        return MachineFinding("plan", "skip", "no run file was given")
    if problem:
        return MachineFinding("plan", "fail", problem, f"see `tidegate check {run}`")
    return MachineFinding("plan", "pass", f"{run} fits this machine")


def gpu_findings(facts: GpuFacts, *, wanted_gpus: int) -> list[MachineFinding]:
    """All checks of GPUs."""
    return [
        check_driver(facts, wanted_gpus=wanted_gpus),
        check_torch(facts, wanted_gpus=wanted_gpus),
        check_devices(facts, wanted_gpus=wanted_gpus),
        check_capability(facts),
        check_gpu_memory(facts),
        check_peers(facts),
    ]


def has_failed(findings: Sequence[MachineFinding]) -> bool:
    """Whether any check failed."""
    return any(finding.outcome == "fail" for finding in findings)
