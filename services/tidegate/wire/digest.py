"""Content digests: XXH3, 128 bits.

A digest detects accidental corruption by networks, disks and programs, and names content so that equal tensors are
sent once. It is no defence against an attacker; permissions to publish are. A policy is hashed once by its sender and
once by each receiver, so hashing must be cheap beside the transfer: XXH3 makes 45-60 GB a
CPU-second where BLAKE3 makes 4.5, CRC-32 4.2 and SHA-256 1.7 (measured on one core with AVX-512).
"""

from xxhash import xxh3_128, xxh3_128_digest

DIGEST_BYTES = 16


class Digest:
    """A digest of content that arrives in pieces."""

    def __init__(self) -> None:
        self._hasher = xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Append a piece."""
        self._hasher.update(data)

    def digest(self) -> bytes:
        """The digest of all pieces so far."""
        return self._hasher.digest()


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest of a whole piece."""
    return xxh3_128_digest(data)
