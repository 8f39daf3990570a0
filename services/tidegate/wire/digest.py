"""The name of a piece of content: BLAKE3, cut to 128 bits.

A cryptographic hash that keeps up with the transfer it checks: 4.4 GB a CPU-second where BLAKE2b makes 0.9 and SHA-256
1.7 (measured on one core with AVX-512), and a policy is hashed once by whoever sends it and once by each receiver.
"""

from blake3 import blake3

DIGEST_BYTES = 16


class Digest:
    """A digest of what comes in pieces."""

    def __init__(self) -> None:
        """Of nothing yet."""
        self._hasher = blake3()

    def update(self, data: bytes | memoryview) -> None:
        """Append a piece."""
        self._hasher.update(data)

    def digest(self) -> bytes:
        """Of everything so far."""
        return self._hasher.digest(length=DIGEST_BYTES)


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest of a whole piece."""
    return blake3(data).digest(length=DIGEST_BYTES)
