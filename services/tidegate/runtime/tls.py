"""Mutual TLS between services when a folder with certificates is configured: every call is authenticated both ways.

The folder contains ``tls.crt``, ``tls.key`` and ``ca.crt``, as a Secret of cert-manager does. A renewed certificate
needs no restart: a server reads the files for each handshake, a channel is opened again when they changed
(``runtime.renewed_channel``), a connection to the broker reads them whenever it was lost. Connections that are open are
not affected.
"""

import contextlib
import os
import ssl
import time
from pathlib import Path

import grpc
import msgspec
import structlog

from tidegate.core.errors import ConfigError
from tidegate.runtime.files import LOOK_PERIOD_S, change_mark

FOLDER_VARIABLE = "TIDEGATE_TLS_DIR"
# The same for the connection to the broker, whose authority may be another.
BROKER_FOLDER_VARIABLE = "TIDEGATE_BROKER_TLS_DIR"
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"

log = structlog.get_logger("tls")


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


class IdentityFolder:
    """A folder of certificates that is looked at again; files that cannot be used leave the identity as it was."""

    def __init__(self, folder: Path) -> None:
        """Read it.

        Raises:
            ConfigError: a certificate cannot be read.
        """
        self._folder = folder
        self._looked_at_s = time.monotonic()
        self._marks = self._look()
        self.identity = read_identity(folder)

    def has_changed(self) -> bool:
        """Whether ``identity`` is another one than at the last call. Looks at the files at most once a second."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s < LOOK_PERIOD_S:
            return False
        self._looked_at_s = now_s
        marks = self._look()
        if marks == self._marks:
            return False
        try:
            identity = read_identity(self._folder)
            # gRPC would fail each call with a key of another certificate.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
                self._folder / CERTIFICATE, self._folder / KEY
            )
        except (ConfigError, OSError) as error:
            log.warning("certificate_unusable", folder=str(self._folder), error=str(error))
            return False
        if self._look() != marks:
            return False  # exchanged while they were read: the next look reads them all
        self._marks = marks
        changed = identity != self.identity
        self.identity = identity
        if changed:
            log.info("certificate_renewed", folder=str(self._folder))
        return changed

    def _look(self) -> list[tuple[int, int]]:
        """Differs after a file was replaced; empty while one is missing."""
        try:
            return [change_mark(self._folder / name) for name in (CERTIFICATE, KEY, AUTHORITY)]
        except OSError:
            return []


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Credentials of a client."""
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


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
    """This process' certificate as it shows it to the broker: a context, replaced by ``renew``."""

    def __init__(self, folder: Path) -> None:
        """Read the files of ``folder``.

        Raises:
            ConfigError: a certificate cannot be read.
        """
        self._folder = folder
        read_identity(folder)
        try:
            self.context = self._read()
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
            self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        """A new context: one that read two authorities trusts both."""
        folder = self._folder
        context = ssl.create_default_context(cafile=str(folder / AUTHORITY))
        context.load_cert_chain(str(folder / CERTIFICATE), str(folder / KEY))
        return context


def broker_identity() -> BrokerIdentity | None:
    """The certificate for the broker, from the folder that the environment names; None without one.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    named = os.environ.get(BROKER_FOLDER_VARIABLE)
    return BrokerIdentity(Path(named)) if named else None
