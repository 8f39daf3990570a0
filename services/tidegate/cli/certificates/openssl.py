"""Keys and certificates by the ``openssl`` program, which the base image has: ECDSA on P-256, signed with SHA-256.

Keys pass through files of a private temporary folder, and never through arguments or messages.
"""

import re
import ssl
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tidegate.core.certificates import CLOCK_SKEW_S
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.files import replace_file

PROGRAM = "openssl"
TIMEOUT_S = 60.0

_CONFIGURATION = """
[ca]
default_ca = issuing
[issuing]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = subject
unique_subject = no
[subject]
commonName = supplied
[req]
distinguished_name = no_questions
[no_questions]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[service]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Issued(msgspec.Struct, frozen=True):
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


class Content(msgspec.Struct, frozen=True):
    """What a certificate says."""

    common_name: str
    dns_names: tuple[str, ...]
    not_before_s: float
    not_after_s: float


def new_key() -> str:
    """A private key."""
    with _workplace() as folder:
        return _openssl(folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def issue_authority(common_name: str, *, key: str, now_s: float, duration_s: float) -> Issued:
    """A self-signed certificate that may sign others. With the same name and key it replaces an earlier one."""
    with _workplace() as folder:
        _write(folder, "own.key", key)
        _request(folder, common_name)
        validity = _validity(now_s, duration_s)
        _openssl(folder, "ca", "-batch", "-notext", "-config", "openssl.conf", "-selfsign", "-extensions", "authority",
                 "-keyfile", "own.key", "-in", "own.csr", "-out", "own.crt", *validity)  # fmt: skip
        return Issued((folder / "own.crt").read_text(encoding="ascii"), key)


def issue(
    common_name: str, *, dns_names: tuple[str, ...], authority: Issued, now_s: float, duration_s: float
) -> Issued:
    """A certificate for both sides of a connection, with a new key."""
    key = new_key()
    with _workplace() as folder:
        _write(folder, "own.key", key)
        _write(folder, "ca.key", authority.key)
        _write(folder, "ca.crt", authority.certificate)
        names = ", ".join(f"DNS:{name}" for name in dns_names)
        _write(folder, "openssl.conf", f"{_CONFIGURATION}subjectAltName = {names}\n")
        _request(folder, common_name)
        validity = _validity(now_s, duration_s)
        _openssl(folder, "ca", "-batch", "-notext", "-config", "openssl.conf", "-extensions", "service",
                 "-keyfile", "ca.key", "-cert", "ca.crt", "-in", "own.csr", "-out", "own.crt", *validity)  # fmt: skip
        return Issued((folder / "own.crt").read_text(encoding="ascii"), key)


def read_certificate(certificate: str) -> Content | None:
    """What a certificate says; None where it is none."""
    with _workplace() as folder:
        _write(folder, "own.crt", certificate)
        try:
            text = _openssl(folder, "x509", "-in", "own.crt", "-noout", "-startdate", "-enddate", "-subject",
                            "-nameopt", "RFC2253", "-ext", "subjectAltName")  # fmt: skip
        except TidegateError:
            return None
    found = dict(re.findall(r"^(notBefore|notAfter|subject)=(.*)$", text, re.MULTILINE))
    return Content(
        common_name=found["subject"].strip().removeprefix("CN="),
        dns_names=tuple(re.findall(r"DNS:([^\s,]+)", text)),
        not_before_s=float(ssl.cert_time_to_seconds(found["notBefore"])),
        not_after_s=float(ssl.cert_time_to_seconds(found["notAfter"])),
    )


def is_signed_by(certificate: str, authority: str) -> bool:
    """Whether an authority signed a certificate, at whatever time it is valid."""
    with _workplace() as folder:
        _write(folder, "own.crt", certificate)
        _write(folder, "ca.crt", authority)
        try:
            _openssl(folder, "verify", "-no_check_time", "-CAfile", "ca.crt", "own.crt")
        except TidegateError:
            return False
    return True


def is_key_of(key: str, certificate: str) -> bool:
    """Whether a key belongs to a certificate."""
    with _workplace() as folder:
        _write(folder, "own.crt", certificate)
        _write(folder, "own.key", key)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "own.crt", folder / "own.key")
        except (ssl.SSLError, ValueError):
            return False
    return True


@contextmanager
def _workplace() -> Generator[Path]:
    """A folder that only this user can read, removed at the end."""
    with TemporaryDirectory(prefix="tidegate-certificates-") as name:
        folder = Path(name)
        _write(folder, "openssl.conf", _CONFIGURATION)
        _write(folder, "index.txt", "")
        yield folder


def _write(folder: Path, name: str, text: str) -> None:
    replace_file(folder / name, text.encode(), mode=0o600)


def _request(folder: Path, common_name: str) -> None:
    _openssl(folder, "req", "-new", "-config", "openssl.conf", "-key", "own.key", "-subj", f"/CN={common_name}",
             "-out", "own.csr")  # fmt: skip


def _validity(now_s: float, duration_s: float) -> list[str]:
    begins, ends = (
        datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%d%H%M%SZ")
        for at_s in (now_s - CLOCK_SKEW_S, now_s + duration_s)
    )
    return ["-startdate", begins, "-enddate", ends]


def _openssl(folder: Path, *arguments: str) -> str:
    """The output of a run of openssl.

    Raises:
        ConfigError: there is no openssl.
        TidegateError: it failed.
    """
    try:
        done = subprocess.run(
            [PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise ConfigError(
            "There is no openssl here, which issues certificates",
            fix="install it, or use an image that has it, as the chart's do",
        ) from error
    if done.returncode != 0:
        # Its first line names the fault; a key is in none of its messages.
        raise TidegateError(f"openssl {arguments[0]} failed", why=done.stderr.strip()[-500:])
    return done.stdout
