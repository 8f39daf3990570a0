"""A version that is arriving over the network: checked and written as its bytes come."""

import base64
import contextlib
from pathlib import Path

from tidegate.core.errors import CorruptionError
from tidegate.weight_distribution.state import Manifest, Tensor
from tidegate.weight_distribution.tensor_file import Extent, lay_out
from tidegate.wire.digest import Digest
from tidegate.wire.payload_cutter import PayloadCutter

ANNOUNCEMENT_KEY = "tidegate.announcement"
# A file below this is written in one call.
WRITE_BUFFER_BYTES = 1 << 20


class Intake:
    """``feed`` the payload in order, then hand it to ``VersionStore.commit``, or ``abort`` it.

    Bytes go to a partial file as they come; nothing but one tensor's hash is held in memory.
    """

    def __init__(
        self, manifest: Manifest, announcement: bytes, *, path: Path, reused: dict[bytes, int]
    ) -> None:
        """Open the partial file and write its header. Tensors in ``reused`` are checked and not written.

        Raises:
            CorruptionError: an empty tensor has the digest of something else.
        """
        self.manifest = manifest
        self.announcement = announcement
        self.reused = reused
        self.path = path
        self._cutter = PayloadCutter(
            manifest.tensors, version=manifest.version, fix="publish the version again"
        )
        written: dict[bytes, Tensor] = {}
        for tensor in manifest.tensors:
            if tensor.digest not in reused:
                written.setdefault(tensor.digest, tensor)
        self._written = {tensor.name for tensor in written.values()}
        header, extents = lay_out(
            list(written.values()), {ANNOUNCEMENT_KEY: base64.b64encode(announcement).decode("ascii")}
        )
        self.extents: dict[bytes, Extent] = {
            digest: extents[tensor.name] for digest, tensor in written.items()
        }
        self._file = path.open("wb", buffering=WRITE_BUFFER_BYTES)
        self._file.write(header)

    def feed(self, chunk: bytes | memoryview) -> None:
        """The next bytes of the payload.

        Raises:
            CorruptionError: a tensor does not match its digest.
            RecordError: more bytes than the manifest promised.
        """
        for tensor, _, part in self._cutter.cut(chunk):
            if tensor.name in self._written:
                self._file.write(part)

    def finish(self) -> None:
        """Close the partial file.

        Raises:
            CorruptionError: the tensors are not those that the policy's own digest names.
            RecordError: the payload ended early.
        """
        self._cutter.finish()
        whole = Digest()
        for tensor in self.manifest.tensors:
            whole.update(tensor.digest)
        if whole.digest() != self.manifest.digest:
            raise CorruptionError(f"Policy {self.manifest.version} does not match its digest")
        self._file.close()

    def abort(self) -> None:
        """Forget it and free its file; after a commit this changes nothing."""
        with contextlib.suppress(OSError):  # closing writes what is buffered, which a full disk refuses again
            self._file.close()
        self.path.unlink(missing_ok=True)
