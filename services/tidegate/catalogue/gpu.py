"""Statistics of services that compute on GPUs, as NVIDIA's management library (NVML) reports them."""

from tidegate.catalogue.kinds import Counter, Family, Gauge
from tidegate.catalogue.telemetry import ATTR_GPU

GPUS = Gauge("gpus", "{gpu}", "GPUs that the service sees.", exported="tidegate.gpu.count")
GPU_BUSY_S = Counter(
    "gpu_busy_s_total",
    "s",
    "Time in which the GPUs that the service sees ran a kernel, mean over them.",
    exported="tidegate.gpu.busy.time",
)
GPU_UTILISATION = Family(
    Gauge,
    "gpu_utilisation.*",
    "1",
    "Share of the last moments in which a GPU ran a kernel.",
    label=ATTR_GPU,
    exported="hw.gpu.utilization",
)
GPU_MEMORY_USED = Family(
    Gauge,
    "gpu_memory_used.*",
    "By",
    "Memory of a GPU in use, by all of its processes.",
    label=ATTR_GPU,
    exported="hw.gpu.memory.usage",
)
GPU_MEMORY = Family(
    Gauge, "gpu_memory.*", "By", "Memory of a GPU.", label=ATTR_GPU, exported="hw.gpu.memory.limit"
)
