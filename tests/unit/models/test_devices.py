"""The choice of a device is never silent: it says why, and fails where a GPU was asked for."""

import re

import msgspec
import pytest

from tidegate.core.errors import ConfigError
from tidegate.models.devices import (
    DEVICE_VARIABLE,
    CudaState,
    DeviceSetting,
    choose_device,
    driver_version,
    find_cuda,
)

GPU = CudaState(num_devices=2, name="NVIDIA H100", torch_cuda="13.0", driver="580.65.06")
OLD_DRIVER = CudaState(
    num_devices=0,
    torch_cuda="13.0",
    driver="550.54.15",
    warning="CUDA initialization: The NVIDIA driver on your system is too old (found version 12040).",
)
NO_DRIVER = CudaState(num_devices=0, torch_cuda="13.0")
NO_BUILD = CudaState(num_devices=0, driver="580.65.06")
POD = {DEVICE_VARIABLE: "cuda"}


def choose(
    wanted: DeviceSetting,
    cuda: CudaState,
    environ: dict[str, str] | None = None,
    *,
    local_rank: int | None = None,
) -> tuple[str, str]:
    chosen = choose_device(
        wanted, setting="learner.device", cuda=cuda, environ=environ or {}, local_rank=local_rank
    )
    return chosen.device, chosen.why


def test_auto_takes_a_gpu_and_says_which() -> None:
    assert choose("auto", GPU) == ("cuda", "learner.device is auto, and torch finds NVIDIA H100")
    assert choose("auto", GPU, local_rank=1)[0] == "cuda:1"


@pytest.mark.parametrize("cuda", [OLD_DRIVER, NO_DRIVER, NO_BUILD])
def test_auto_on_a_laptop_falls_back_and_says_why(cuda: CudaState) -> None:
    device, why = choose("auto", cuda)
    assert device == "cpu"
    assert "torch finds no CUDA device: " in why


@pytest.mark.parametrize(
    ("cuda", "why", "fix"),
    [
        (OLD_DRIVER, r"CUDA 13\.0.*driver is 550\.54\.15.*too old", r"driver R580 or newer"),
        (NO_DRIVER, r"CUDA 13\.0.*no NVIDIA driver", r"nvidia\.com/gpu"),
        (NO_BUILD, r"built without CUDA", r"tidegate-learner-gpu"),
        (msgspec.structs.replace(OLD_DRIVER, driver="580.65.06"), r"580\.65\.06", r"nvidia-smi"),
    ],
)
@pytest.mark.parametrize(("wanted", "environ"), [("cuda", {}), ("auto", POD)])
def test_a_gpu_that_was_asked_for_and_is_not_there_ends_the_process(
    wanted: DeviceSetting, environ: dict[str, str], cuda: CudaState, why: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        choose(wanted, cuda, environ)
    assert re.search(why, raised.value.why)
    assert re.search(fix, raised.value.fix)
    assert ("TIDEGATE_DEVICE" if environ else "learner.device is cuda") in raised.value.what


def test_the_run_file_decides_before_the_pod() -> None:
    assert choose("cpu", GPU, POD) == ("cpu", "learner.device is cpu")


def test_more_ranks_than_devices_and_an_unknown_device_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 CUDA devices"):
        choose("auto", GPU, local_rank=2)
    with pytest.raises(ConfigError, match="TIDEGATE_DEVICE"):
        choose("auto", GPU, {DEVICE_VARIABLE: "tpu"})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
            "550.54.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("", ""),
    ],
)
def test_the_driver_is_read_from_the_kernel(text: str, version: str) -> None:
    assert driver_version(text) == version


def test_this_machine_is_asked_without_an_error() -> None:
    assert find_cuda().num_devices >= 0
