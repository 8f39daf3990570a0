"""When a certificate of a release is issued again: decided from what a Secret holds and what the release asks for."""

import re

import msgspec

from tidegate.core.errors import ConfigError

# Issued certificates begin a little in the past, for nodes whose clock is behind.
CLOCK_SKEW_S = 300.0
_NAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# The limit of X.509.
_COMMON_NAME_LENGTH_MAX = 64


class CertificateRequest(msgspec.Struct, frozen=True):
    """A certificate that a release asks for: the Secret that holds it, whom it names, and for how long."""

    secret: str
    common_name: str
    dns_names: tuple[str, ...]
    duration_s: float
    renew_before_s: float


class HeldCertificate(msgspec.Struct, frozen=True):
    """A certificate that a Secret holds. ``is_trusted``: this authority signed it, and its key is beside it."""

    common_name: str
    dns_names: tuple[str, ...]
    not_before_s: float
    not_after_s: float
    is_trusted: bool


def parse_request(text: str, *, duration_s: float, renew_before_s: float) -> CertificateRequest:
    """Read ``SECRET=COMMON_NAME,DNS_NAME,DNS_NAME...``.

    Raises:
        ConfigError: it is not that, a name cannot be in a certificate, or it would be renewed as soon as it is issued.
    """
    secret, _, names = text.partition("=")
    common_name, *dns_names = names.split(",")
    if not secret or not dns_names or not all(_NAME.fullmatch(name) for name in (common_name, *dns_names)):
        raise ConfigError(
            f"The certificate {text!r} cannot be read",
            fix="write it as SECRET=COMMON_NAME,DNS_NAME, with names in small letters",
        )
    if len(common_name) > _COMMON_NAME_LENGTH_MAX:
        raise ConfigError(f"The common name {common_name} is longer than {_COMMON_NAME_LENGTH_MAX} letters")
    if not 0.0 < renew_before_s < duration_s:
        raise ConfigError(
            f"A certificate of {duration_s:g} s cannot be renewed {renew_before_s:g} s before it expires",
            why="it would be issued again at each look",
            fix="raise the duration, or lower the time before",
        )
    return CertificateRequest(secret, common_name, tuple(dns_names), duration_s, renew_before_s)


def why_issue(held: HeldCertificate | None, request: CertificateRequest, *, now_s: float) -> str:
    """Why a certificate is issued now; empty where the one that is there stays."""
    if held is None:
        return "there is none"
    if not held.is_trusted:
        return "it is not of this authority, or without its key"
    if held.common_name != request.common_name or set(held.dns_names) != set(request.dns_names):
        return "its names are others"
    if now_s < held.not_before_s:
        return "it is not valid yet"
    if now_s >= held.not_after_s - request.renew_before_s:
        return "it expires"
    if held.not_after_s - held.not_before_s > request.duration_s + CLOCK_SKEW_S:
        return "it is valid for longer than is asked for"
    return ""
