"""Certificates of an authority of the test's own, made by openssl."""

import shutil
import subprocess
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
