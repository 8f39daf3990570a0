"""Memory that a process keeps, and memory that it gives back."""

import ctypes
import mmap
import re
from collections.abc import Iterable

# From malloc.h. glibc refuses a higher threshold for memory of its own mapping than half a heap: 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 * 1024 * 1024
# A mapping in /proc/<pid>/smaps: its addresses, permissions and file. Its measures follow, one a line.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
_KEPT_KB = 256


def keep_freed_memory(max_bytes: int) -> bool:
    """Keep up to ``max_bytes`` of freed memory for the next tensors instead of returning it to the kernel.

    A policy swap frees as much as the next one allocates, and the kernel would zero every page again: for 256 MiB that
    is 48 ms of CPU beside a copy of 17 (measured). Returns whether this libc supports it; only glibc does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, max_bytes))


def release_file_pages() -> int:
    """Unmap pages of libraries that this process read and never wrote; returns their KB. Linux only.

    They stay in the kernel's cache and are mapped again when they are read. Importing torch reads 200 MB of them,
    which a process that only forks never reads again.
    """
    madvise = ctypes.CDLL(None).madvise
    released_kb = 0
    with open("/proc/self/smaps", encoding="utf-8") as smaps:
        mappings = list(unwritten_mappings(smaps))
    for start, end, resident_kb in mappings:
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED) == 0:
            released_kb += resident_kb
    return released_kb


def unwritten_mappings(smaps: Iterable[str]) -> Iterable[tuple[int, int, int]]:
    """Start, end and resident KB of private mappings of files, not writable and without any changed page.

    A page that was changed, such as one that the linker relocated, would lose its change. Small mappings are left out.
    """
    found: tuple[int, int] | None = None
    resident_kb = 0
    for line in smaps:
        mapping = _MAPPING.match(line)
        if mapping is not None:
            start, end, permissions, file = mapping.groups()
            is_private_file = file.startswith("/") and permissions[1] == "-" and permissions[3] == "p"
            found = (int(start, 16), int(end, 16)) if is_private_file else None
        elif found is not None and line.startswith("Rss:"):
            resident_kb = int(line.split()[1])
        elif found is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0 and resident_kb > _KEPT_KB:
                yield (*found, resident_kb)
            found = None
