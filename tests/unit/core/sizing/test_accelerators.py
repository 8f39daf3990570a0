import pytest

from tidegate.core.sizing.accelerators import accelerator_of


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80"),
        ("NVIDIA L4", 22.5, "L4-24"),
        ("NVIDIA L40S", 44.9, "L40S-48"),
        ("NVIDIA H200", 139.8, "H200-141"),
    ],
)
def test_gpu_is_known_by_torchs_name_and_its_memory(name: str, gib: float, kind: str) -> None:
    gpu = accelerator_of(name, gib * 2**30)
    assert gpu is not None
    assert gpu.name == kind


def test_gpu_of_another_name_is_not_known() -> None:
    assert accelerator_of("NVIDIA GeForce RTX 3090", 24 * 2**30) is None
