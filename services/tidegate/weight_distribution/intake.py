"""A version that is arriving over the network: checked and written as its bytes come."""

import base64
from pathlib import Path

from tidegate.core.errors import CorruptionError, RecordError
from tidegate.weight_distribution.state import Manifest, Tensor
from tidegate.weight_distribution.tensor_file import Extent, encode_header
from tidegate.wire.digest import Digest

ANNOUNCEMENT_KEY = "tidegate.announcement"
# A file below this is handed to the kernel in one write.
WRITE_BUFFER_BYTES = 1 << 20


class Intake:
    """``feed`` the payload in order, then hand it to ``VersionStore.commit``, or ``abort`` it.

    Bytes go to a partial file as they come; nothing but one tensor's hash is held in memory.
    """

    def __init__(
        self, manifest: Manifest, announcement: bytes, *, path: Path, reused: dict[bytes, int]
    ) -> None:
        """Open the partial file and write its header. Tensors in ``reused`` are checked and not written."""
        self.manifest = manifest
        self.announcement = announcement
        self.reused = reused
        self.path = path
        written: dict[bytes, Tensor] = {}
        for tensor in manifest.tensors:
            if tensor.digest not in reused:
                written.setdefault(tensor.digest, tensor)
        self._written = {tensor.name for tensor in written.values()}
        header, extents = encode_header(
            list(written.values()), {ANNOUNCEMENT_KEY: base64.b64encode(announcement).decode("ascii")}
        )
        self.extents: dict[bytes, Extent] = {
            digest: extents[tensor.name] for digest, tensor in written.items()
        }
        self._file = path.open("wb", buffering=WRITE_BUFFER_BYTES)
        self._file.write(header)
        self._index = -1
        self._left = 0
        self._hash = Digest()
        self._begin_tensor()

    def feed(self, chunk: bytes | memoryview) -> None:
        """The next bytes of the payload.

        Raises:
            CorruptionError: a tensor does not match its digest.
            RecordError: more bytes than the manifest promised.
        """
        view = memoryview(chunk)
        while len(view):
            if self._index == len(self.manifest.tensors):
                raise RecordError(
                    f"Policy {self.manifest.version} came with more bytes than its manifest lists"
                )
            part = view[: self._left]
            self._hash.update(part)
            if self.manifest.tensors[self._index].name in self._written:
                self._file.write(part)
            self._left -= len(part)
            view = view[len(part) :]
            if self._left == 0:
                self._end_tensor()
                self._begin_tensor()

    def _begin_tensor(self) -> None:
        """Move to the next tensor that has bytes."""
        while True:
            self._index += 1
            if self._index == len(self.manifest.tensors):
                return
            self._hash = Digest()
            self._left = self.manifest.tensors[self._index].size
            if self._left > 0:
                return
            self._end_tensor()

    def _end_tensor(self) -> None:
        tensor = self.manifest.tensors[self._index]
        if self._hash.digest() != tensor.digest:
            raise CorruptionError(
                f"Tensor {tensor.name!r} of policy {self.manifest.version} does not match its digest",
                why="its bytes changed on the way",
                fix="publish the version again",
            )

    def finish(self) -> None:
        """Close the partial file.

        Raises:
            CorruptionError: the tensors are not those that the policy's own digest names.
            RecordError: the payload ended early.
        """
        if self._index < len(self.manifest.tensors):
            raise RecordError(f"Policy {self.manifest.version} ended inside of its tensors")
        whole = Digest()
        for tensor in self.manifest.tensors:
            whole.update(tensor.digest)
        if whole.digest() != self.manifest.digest:
            raise CorruptionError(f"Policy {self.manifest.version} does not match its digest")
        self._file.close()

    def abort(self) -> None:
        """Forget it and free its file; after a commit this changes nothing."""
        self._file.close()
        self.path.unlink(missing_ok=True)
