"""Why a pod's process ended, where `kubectl describe pod` shows it."""

import contextlib
from pathlib import Path

# The kubelet's default; it reads at most 4096 bytes. Outside of pods there is none.
TERMINATION_FILE = Path("/dev/termination-log")
BYTES_MAX = 4096


def write_termination_message(text: str, *, path: Path = TERMINATION_FILE) -> None:
    """Replace the message of this container; does nothing outside of a pod, and loses what cannot be written."""
    if not path.exists():
        return
    with contextlib.suppress(OSError):  # the log has it, too
        path.write_bytes(text.encode()[:BYTES_MAX])
