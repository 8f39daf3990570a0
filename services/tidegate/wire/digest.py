"""The name of a piece of content: XXH3, 128 bits.

It guards against what networks, disks and programs do to bytes by accident, and names content so that equal tensors
travel once; it is no defence against an attacker, who is kept out by who may publish. A policy is hashed once by
whoever sends it and once by each receiver, so the hash must not be felt beside the transfer: XXH3 makes 45-60 GB a
CPU-second where BLAKE3 makes 4.5, CRC-32 4.2 and SHA-256 1.7 (measured on one core with AVX-512).
"""

from xxhash import xxh3_128, xxh3_128_digest

DIGEST_BYTES = 16


class Digest:
    """A digest of what comes in pieces."""

    def __init__(self) -> None:
        """Of nothing yet."""
        self._hasher = xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Append a piece."""
        self._hasher.update(data)

    def digest(self) -> bytes:
        """Of everything so far."""
        return self._hasher.digest()


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest of a whole piece."""
    return xxh3_128_digest(data)
