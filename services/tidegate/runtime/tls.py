"""Mutual TLS between services when a folder with certificates is configured: every call is authenticated both ways.

The folder contains ``tls.crt``, ``tls.key`` and ``ca.crt``, as a Secret of cert-manager does. A server reads them again
for each handshake, so a renewed certificate needs no restart there; a client's channel reads them once. A connection to
the broker reads them again whenever it was lost, and is otherwise not affected by a renewal.
"""

import contextlib
import os
import ssl
from pathlib import Path

import grpc
import msgspec

from tidegate.core.errors import ConfigError

FOLDER_VARIABLE = "TIDEGATE_TLS_DIR"
# The same for the connection to the broker, whose authority may be another.
BROKER_FOLDER_VARIABLE = "TIDEGATE_BROKER_TLS_DIR"
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"


class Identity(msgspec.Struct, frozen=True):
    """A certificate with its key and the trusted authority; PEM bytes."""

    certificate: bytes
    key: bytes
    authority: bytes


def identity_folder() -> Path | None:
    """The folder of this process' certificates, from the environment; None without TLS."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else None


def read_identity(folder: Path) -> Identity:
    """The certificates of this process.

    Raises:
        ConfigError: a file of the folder cannot be read.
    """
    try:
        return Identity(*((folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)))
    except OSError as error:
        raise ConfigError(
            f"{FOLDER_VARIABLE} names {folder}, and {error.filename} cannot be read",
            why=error.strerror or str(error),
            fix="mount a Secret with tls.crt, tls.key and ca.crt there, or unset it",
        ) from error


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """Credentials of a client.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    own = read_identity(folder)
    return grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Credentials of a server that accepts only clients of its authority.

    Raises:
        ConfigError: a certificate cannot be read.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        own = read_identity(folder)
        return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authority)

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=True)


class BrokerIdentity:
    """This process' certificate as it shows it to the broker: one context, whose files are read again by ``renew``."""

    def __init__(self, folder: Path) -> None:
        """Read the files of ``folder``.

        Raises:
            ConfigError: a certificate cannot be read.
        """
        self._folder = folder
        read_identity(folder)
        try:
            self.context = ssl.create_default_context(cafile=str(folder / AUTHORITY))
            self._load()
        except ssl.SSLError as error:
            raise ConfigError(
                f"{BROKER_FOLDER_VARIABLE} names {folder}, whose certificate cannot be used",
                why=str(error),
                fix="mount a Secret with tls.crt, tls.key and ca.crt there",
            ) from error

    def renew(self) -> None:
        """Read the files again for the next handshake; what is there stays while they cannot be read."""
        # A renewal replaces the three files together; a reader between two volumes finds none for a moment.
        with contextlib.suppress(OSError):
            self._load()

    def _load(self) -> None:
        folder = self._folder
        self.context.load_verify_locations(cafile=str(folder / AUTHORITY))
        self.context.load_cert_chain(str(folder / CERTIFICATE), str(folder / KEY))


def broker_identity() -> BrokerIdentity | None:
    """The certificate for the broker, from the folder that the environment names; None without one.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    named = os.environ.get(BROKER_FOLDER_VARIABLE)
    return BrokerIdentity(Path(named)) if named else None
