"""Each check of the doctor by an injected fault: what is named, and that the fix is for that fault."""

import msgspec
import pytest

from tidegate.core import doctor as checks
from tidegate.core.doctor import Device, GpuFacts, MachineFinding, RdmaFacts, VolumeFacts

H100 = Device("NVIDIA H100", (9, 0), total_bytes=80_000_000_000, free_bytes=79_000_000_000, peers=(0, 1))
HEALTHY = GpuFacts(driver="580.65.06", torch="2.13.0", torch_cuda="13.0", devices=(H100, H100))
NO_GPU = GpuFacts(torch="2.13.0")
RDMA = RdmaFacts(adapters=("mlx5_0",), verbs=True, memlock_bytes=None)


def changed(facts: GpuFacts, **changes: object) -> GpuFacts:
    return msgspec.structs.replace(facts, **changes)


def with_device(**changes: object) -> GpuFacts:
    return changed(HEALTHY, devices=(H100, msgspec.structs.replace(H100, **changes)))


def test_healthy_machine_passes_every_check() -> None:
    findings = [
        *checks.gpu_findings(HEALTHY, wanted_gpus=2),
        checks.check_shared_memory(8 << 30, wanted_gpus=2),
        checks.check_rdma(RDMA),
        checks.check_memlock(RDMA),
        checks.check_port(29500, problem=""),
        checks.check_volume(VolumeFacts("/data", mb_per_s=400.0)),
        checks.check_address("store:7000", problem=""),
        checks.check_model("abc", expected="abc"),
        checks.check_vllm(f"{checks.VLLM_VERSION}+cu130"),
        checks.check_plan("run.yaml", problem=""),
    ]
    assert {finding.outcome for finding in findings} == {"pass"}
    assert not checks.has_failed(findings)


def test_machine_without_gpus_that_expects_none_skips_with_a_reason() -> None:
    findings = [
        *checks.gpu_findings(NO_GPU, wanted_gpus=0),
        checks.check_shared_memory(64 << 20, wanted_gpus=0),
        checks.check_rdma(RdmaFacts()),
        checks.check_memlock(RdmaFacts()),
        checks.check_model(None, expected=""),
        checks.check_vllm(None),
        checks.check_plan("", problem=""),
    ]
    assert {finding.check for finding in findings if finding.outcome == "pass"} == {"torch"}
    assert not checks.has_failed(findings)
    assert all(finding.found for finding in findings)


def driver(facts: GpuFacts) -> MachineFinding:
    return checks.check_driver(facts, wanted_gpus=2)


@pytest.mark.parametrize(
    ("finding", "named", "fix"),
    [
        (driver(changed(HEALTHY, driver="")), "no NVIDIA driver", "nvidia.com/gpu"),
        (driver(changed(HEALTHY, driver="550.54.15")), "550.54.15, and torch is built for CUDA 13.0", "R580"),
        (checks.check_torch(NO_GPU, wanted_gpus=1), "without CUDA", "tidegate-learner-gpu"),
        (checks.check_devices(HEALTHY, wanted_gpus=8), "2 of 8 GPUs (NVIDIA H100)", "CUDA_VISIBLE_DEVICES"),
        (
            checks.check_capability(with_device(name="T4", capability=(7, 5))),
            "T4 has compute capability 7.5",
            "float32",
        ),
        (
            checks.check_gpu_memory(with_device(free_bytes=20_000_000_000)),
            "GPU 1: 60.0 of 80.0 GB",
            "nvidia-smi",
        ),
        (
            checks.check_peers(changed(HEALTHY, devices=(msgspec.structs.replace(H100, peers=()),) * 2)),
            "0-1",
            "NVLink",
        ),
        (checks.check_shared_memory(64 << 20, wanted_gpus=8), "has 67 MB", "sharedMemory"),
        (checks.check_rdma(msgspec.structs.replace(RDMA, verbs=False)), "mlx5_0", "rdma/"),
        (checks.check_memlock(msgspec.structs.replace(RDMA, memlock_bytes=65_536)), "0.1 MB", "IPC_LOCK"),
        (
            checks.check_port(29500, problem="Address already in use"),
            "port 29500: Address already",
            "MASTER_PORT",
        ),
        (checks.check_volume(VolumeFacts("/data", mb_per_s=3.0)), "only 3 MB/s", "storage class"),
        (checks.check_volume(VolumeFacts("/data", problem="Read-only file system")), "Read-only", "writable"),
        (
            checks.check_address("store:7000", problem="no connection opened within 5 s"),
            "no connection",
            "network",
        ),
        (checks.check_model("abc", expected="abd"), "its digest is abc, not abd", "same folder"),
        (checks.check_model(None, expected="", problem="model.safetensors is cut"), "is cut", "again"),
        (checks.check_vllm("0.11.0"), "vLLM is 0.11.0", "actor-vllm"),
        (
            checks.check_plan("run.yaml", problem="7B does not fit into 80 GB"),
            "does not fit",
            "tidegate check run.yaml",
        ),
    ],
)
def test_each_fault_is_named_with_its_fix(finding: MachineFinding, named: str, fix: str) -> None:
    assert finding.outcome == "fail"
    assert named in finding.found
    assert fix in finding.fix
    assert checks.has_failed([finding])


def test_one_gpu_has_no_other_to_reach() -> None:
    assert checks.check_peers(changed(HEALTHY, devices=(H100,))).outcome == "skip"
