"""Certificates of an authority of the test's own, made by openssl, and the folder that a kubelet mounts them in."""

import shutil
import subprocess
from itertools import count
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by openssl, which is not here"
)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_identity(folder: Path) -> Path:
    """An authority, and a certificate of it for this machine's loopback."""
    folder.mkdir()
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-days", "2",
            "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt"))  # fmt: skip
    openssl("req", "-x509", *curve, "-subj", "/CN=tidegate", "-days", "1", "-addext", "subjectAltName=IP:127.0.0.1",
            "-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"),
            "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"))  # fmt: skip
    return folder


class MountedSecret:
    """A folder whose files a kubelet exchanges all at once: each is a link through ``..data``, which it replaces."""

    def __init__(self, folder: Path, content: Path) -> None:
        """``content``: a folder with the first files."""
        folder.mkdir()
        self.folder = folder
        self._numbers = count()
        self.swap(content)
        for file in content.iterdir():
            (folder / file.name).symlink_to(Path("..data") / file.name)

    def swap(self, content: Path) -> None:
        """Show the files of another folder from now on."""
        written = self.folder / f"..{next(self._numbers)}"
        shutil.copytree(content, written)
        link = self.folder / "..data_tmp"
        link.symlink_to(written.name)
        link.replace(self.folder / "..data")
