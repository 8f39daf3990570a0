"""The two fork servers of a run, and what each loads before it forks."""

from tidegate.launch.services import SERVICES

# Names of processes. Services without tensors share the first; what computes with torch shares the second, because
# importing torch takes two CPU-seconds and 250 MB, which nothing else is to wait for or to carry.
LIGHT = "fork-server"
TORCH = "torch-fork-server"
LEARNER = "learner"

# Each is loaded while no request waits, in this order.
PRELOADED: dict[str, tuple[str, ...]] = {
    TORCH: ("torch", f"{SERVICES[LEARNER].package}.main"),
    LIGHT: tuple(f"{entry.package}.main" for service, entry in SERVICES.items() if service != LEARNER),
}


def title_of(name: str) -> str:
    """The title of a fork server's process, before the run is known."""
    return f"tidegate {name}"
