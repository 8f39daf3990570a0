"""GPUs as services report them, with a fake driver; no machine of the tests has a GPU."""

import asyncio
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.support.service_harness import make_context, until
from tests.support.settings import make_settings
from tests.unit.runtime.nvml_stub import FakeNvml
from tidegate.catalogue import gpu as statistics
from tidegate.runtime import gpu_statistics
from tidegate.runtime.bus import Bus
from tidegate.runtime.gpu_statistics import report, with_gpu_statistics
from tidegate.runtime.nvml import VISIBLE_VARIABLE, GpuReader, GpuReading, open_gpus, visible_places
from tidegate.runtime.service import ServiceParts
from tidegate.runtime.stats_board import StatsBoard

NVML_LIBRARY = Path(__file__).with_name("nvml_library.c")
UUIDS = ["GPU-0000-ab", "GPU-0001-ab", "GPU-0002-ab"]


@pytest.fixture(autouse=True)
def all_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE_VARIABLE, raising=False)


def opened(nvml: FakeNvml) -> GpuReader:
    reader = open_gpus(load=lambda _name: nvml)
    assert reader is not None
    return reader


def board() -> StatsBoard:
    return StatsBoard(service="learner", instance="learner", started_at_s=0.0)


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-0001", [1]),
        ("GPU-0002-ab,0", [2, 0]),
        # As CUDA does: nothing after what names no GPU, or several.
        ("0,7,1", [0]),
        ("1,GPU,0", [1]),
        ("-1", []),
        ("0,0", [0]),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_use(visible: str | None, places: list[int]) -> None:
    assert visible_places(visible, UUIDS) == places


def test_gpus_are_numbered_as_the_process_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE_VARIABLE, "2,0")
    assert opened(FakeNvml(10, 20, 90)).read() == [
        GpuReading(0, 0.9, 3 << 30, 80 << 30),
        GpuReading(1, 0.1, 1 << 30, 80 << 30),
    ]


def no_module(_name: str) -> Any:
    raise ModuleNotFoundError("No module named 'pynvml'")


@pytest.mark.parametrize("nvml", [FakeNvml(without_driver=True), FakeNvml(), None])
def test_machine_without_driver_gpu_or_package_has_no_reader(nvml: FakeNvml | None) -> None:
    assert open_gpus(load=no_module if nvml is None else lambda _name: nvml) is None


def test_gpus_are_read_through_the_real_package(tmp_path: Path) -> None:
    """With a library of the driver's interface in the place of the driver."""
    compiler = shutil.which("cc")
    if compiler is None or find_spec("pynvml") is None:
        pytest.skip("needs a C compiler and the package nvidia-ml-py")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, NVML_LIBRARY], check=True)
    code = (
        "import msgspec, sys\nfrom tidegate.runtime.nvml import open_gpus\n"
        "sys.stdout.buffer.write(msgspec.json.encode(open_gpus().read()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert msgspec.json.decode(answer.stdout, type=list[GpuReading]) == [
        GpuReading(0, 0.73, 1 << 30, 80 << 30),
        GpuReading(1, None, 2 << 30, 80 << 30),
    ]


def test_part_of_a_gpu_that_does_not_say_how_busy_it_is_reports_its_memory() -> None:
    stats = board()
    readings = opened(FakeNvml(None)).read()
    report(stats, readings, before=[], seconds=2.0)
    assert stats.value(statistics.GPU_MEMORY.member("0")) == 80 << 30
    values = stats.snapshot(at_s=0.0).values
    assert statistics.GPU_UTILISATION.member("0") not in values
    assert values[statistics.GPU_BUSY_S] == 0.0


def test_busy_time_is_the_mean_over_the_gpus() -> None:
    stats = board()
    reader = opened(FakeNvml(100, 50))
    for _ in range(3):
        report(stats, reader.read(), before=[], seconds=2.0)
    assert stats.value(statistics.GPU_BUSY_S) == pytest.approx(3 * 2.0 * 0.75)
    assert stats.value(statistics.GPUS) == 2.0


def test_lost_gpu_is_an_error_that_names_it_and_its_last_values_go() -> None:
    nvml = FakeNvml(100, 50)
    reader, stats = opened(nvml), board()
    known = reader.read()
    report(stats, known, before=[], seconds=2.0)
    nvml.lost.add(1)
    with pytest.raises(OSError, match="GPU 1 cannot be read: GPU is lost"):
        reader.read()
    report(stats, [], before=known, seconds=2.0)
    values = stats.snapshot(at_s=0.0).values
    assert values[statistics.GPUS] == 0.0
    assert not [name for name in values if name.startswith(("gpu_utilisation", "gpu_memory"))]


async def waiting() -> None:
    """A loop of a service with nothing else to do."""


async def test_service_with_a_gpu_gets_a_loop_that_outlasts_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_statistics, "PERIOD_S", 0.001)
    settings = make_settings(tmp_path, broker_url="", writes_credentials=False)
    context = make_context("learner", settings, bus=cast("Bus", None))
    nvml = FakeNvml(50)
    parts = await with_gpu_statistics(
        ServiceParts(loops={"train": waiting}), context, find=lambda: opened(nvml)
    )
    assert set(parts.loops) == {"train", "gpus"}
    with capture_logs() as logged:
        loop = asyncio.ensure_future(parts.loops["gpus"]())
        await until(lambda: context.stats.value(statistics.GPU_BUSY_S) > 0)
        nvml.lost.add(0)
        await until(lambda: "gpus_not_read" in [line["event"] for line in logged])
        await until(lambda: context.stats.value(statistics.GPUS) == 0.0)
        nvml.lost.clear()
        await until(lambda: context.stats.value(statistics.GPUS) == 1.0)
        context.drain.request()
        await loop


async def test_service_without_a_gpu_gets_no_loop(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, broker_url="", writes_credentials=False)
    context = make_context("learner", settings, bus=cast("Bus", None))
    parts = ServiceParts(loops={"train": waiting})
    assert await with_gpu_statistics(parts, context, find=lambda: None) is parts
