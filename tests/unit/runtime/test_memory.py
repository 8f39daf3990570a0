import mmap
import sys
from pathlib import Path

import pytest

from tidegate.runtime.memory import release_file_pages, unwritten_mappings

KIB = 1024


def mapping(addresses: str, permissions: str, file: str, *, resident_kb: int, anonymous_kb: int) -> list[str]:
    return [
        f"{addresses} {permissions} 00000000 fe:00 1234    {file}\n",
        "Size:            8192 kB\n",
        f"Rss:             {resident_kb} kB\n",
        f"Anonymous:       {anonymous_kb} kB\n",
        "VmFlags: rd ex mr mw me\n",
    ]


LIBRARY = "/lib/libtorch.so"


def test_only_unwritten_mappings_of_files_are_found() -> None:
    smaps = [
        *mapping("1000-2000", "r-xp", LIBRARY, resident_kb=4096, anonymous_kb=0),
        *mapping("2000-3000", "r--p", LIBRARY, resident_kb=4096, anonymous_kb=4),  # relocated
        *mapping("3000-4000", "rw-p", LIBRARY, resident_kb=4096, anonymous_kb=0),
        *mapping("4000-5000", "r--s", "/dev/shm/ring", resident_kb=4096, anonymous_kb=0),
        *mapping("5000-6000", "rw-p", "[heap]", resident_kb=4096, anonymous_kb=4096),
        *mapping("6000-7000", "r-xp", "", resident_kb=4096, anonymous_kb=0),
        *mapping("7000-8000", "r--p", LIBRARY, resident_kb=64, anonymous_kb=0),  # small
        *mapping("8000-9000", "r--p", LIBRARY, resident_kb=512, anonymous_kb=0),
    ]
    assert list(unwritten_mappings(smaps)) == [(0x1000, 0x2000, 4096), (0x8000, 0x9000, 512)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_released_pages_of_a_file_read_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "library"
    content = bytes(range(256)) * (4 * KIB)
    path.write_bytes(content)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert mapped[:] == content, "now all of its pages are resident"
    assert release_file_pages() >= len(content) // KIB
    assert mapped[:] == content
