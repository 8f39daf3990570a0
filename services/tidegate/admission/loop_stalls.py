"""Which service's event loop stood still because it computed, as one sentence. No IO."""

from typing import NamedTuple

from tidegate.catalogue import process
from tidegate.wire.stats import ServiceStats

# Below it a stall does no harm: heartbeats and liveness probes have seconds.
WORTH_SAYING_S = 0.5


class _Worst(NamedTuple):
    cpu_s: float
    instance: str
    where: str


class LoopStalls:
    """The longest computing stall of any instance, kept beyond its life."""

    def __init__(self) -> None:
        self._worst = _Worst(0.0, "", "")

    def receive(self, stats: ServiceStats) -> None:
        """Follow the report of any service."""
        cpu_s = stats.values.get(process.LOOP_STALL_CPU_S, 0.0)
        self._worst = max(
            self._worst, _Worst(cpu_s, stats.instance, stats.labels.get(process.LOOP_STALL, ""))
        )

    def sentence(self) -> str:
        """The instance, its longest stall and the function; empty where none was long enough to matter."""
        if self._worst.cpu_s < WORTH_SAYING_S:
            return ""
        where = f" in {self._worst.where}" if self._worst.where else ""
        return (
            f"the event loop of {self._worst.instance} computed for {self._worst.cpu_s:.1f} s without a pause{where}:"
            " meanwhile it answered no call and sent no heartbeat; this is a defect (log event event_loop_stalled)"
        )
