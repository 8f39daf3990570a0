"""Secrets that callers of an HTTP server present."""

import hmac

_BEARER = "bearer "


def bearer_token(header: str) -> str | None:
    """The token of an Authorization header; None where it holds no bearer token."""
    return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None


def same_secret(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
