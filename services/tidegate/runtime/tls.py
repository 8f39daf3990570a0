"""Mutual TLS between services when a folder with certificates is configured: every call is authenticated both ways.

The folder contains ``tls.crt``, ``tls.key`` and ``ca.crt``, as a Secret of cert-manager does. A server reads them again
for each handshake, so a renewed certificate needs no restart there; a client's channel reads them once.
"""

import os
from pathlib import Path

import grpc
import msgspec

from tidegate.core.errors import ConfigError

FOLDER_VARIABLE = "TIDEGATE_TLS_DIR"


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
        return Identity(*((folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")))
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
