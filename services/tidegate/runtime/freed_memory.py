"""Keep freed memory for the next message, instead of giving it back to the kernel and asking for it again.

glibc maps each block above 128 KiB by itself, and shrinks the heap whenever that much is free at its end. A process
that passes messages of some hundred kilobytes on then has the kernel unmap and clear the same pages again for each
message: building one of 256 kB took 160 us, and 5 with these thresholds. glibc raises both by itself, but only by the
blocks that it sees freed, and no higher than here.
"""

import ctypes
import sys

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The largest that glibc takes for blocks, and so the most that it keeps at the end of each heap.
KEPT_BYTES_MAX = 32 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Set both thresholds of this process; False where its C library has none (musl, macOS)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    kept = [mallopt(which, KEPT_BYTES_MAX) for which in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD)]
    return all(kept)
