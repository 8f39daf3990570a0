"""Fails a test whose services' event loops stood still because they computed."""

import re
from pathlib import Path

from tidegate.runtime.loop_watchdog import LoopWatchdog

# Of CPU time of the loop's own thread, which a busy machine does not add to, except for cold caches and a slow clock.
# Services promise 0.1 s; runs of the examples stay below it. Beside other work 0.31 s were seen of what takes less.
CPU_MAX_S = 0.8
_FIELD = re.compile(r"(\w+)=(\S+)")


def stalls_in_logs(folder: Path) -> list[str]:
    """Lines in the logs of a run about event loops that computed for longer than tests accept."""
    return [
        f"{path.stem}: {line}"
        for path in sorted((folder / "logs").glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if "event=event_loop_stalled" in line and _is_defect(dict(_FIELD.findall(line)))
    ]


def _is_defect(fields: dict[str, str]) -> bool:
    return fields["kind"] == "computing" and float(fields["cpu_s"]) > CPU_MAX_S


def stalls_of(watchdog: LoopWatchdog) -> list[str]:
    """The longest computing stall of a watched loop, if it is longer than tests accept."""
    longest = watchdog.longest.get("computing")
    if longest is None or longest.cpu_s <= CPU_MAX_S:
        return []
    return [f"the event loop computed for {longest.cpu_s:.2f} s without a pause in {watchdog.culprit}"]
