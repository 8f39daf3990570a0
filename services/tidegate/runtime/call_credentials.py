"""Credentials of gRPC calls: a token for each role, and the digests by which a server recognises them.

A folder holds ``<role>.token`` for each role that its reader may act as, and ``digests.json``: the SHA-256 of every
token that is accepted, by role. So a server recognises every caller and can act as none of them. ``tidegate up``
derives all tokens from one secret and writes the folder; in a cluster it is a mounted Secret with the reader's own
token only. Files are read again when they change. A role has up to three accepted tokens, so that a rotation refuses no
call while some pods have seen it and others have not: the current one, the previous one, and the next one, which
becomes the current one at the next rotation.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.core.errors import NotFoundError
from tidegate.runtime.changing_file import ChangingFile
from tidegate.runtime.files import replace_file
from tidegate.wire.call_permissions import ROLES, Role

DIGESTS_FILE = "digests.json"

_FIX = "let `tidegate up` or the chart's Job make the folder, or see its owner and mode"


class CallToken(Protocol):
    """The token of a caller."""

    def current(self) -> str:
        """The token to send with a call that begins now."""
        ...


class AcceptedTokens(Protocol):
    """The tokens that a server accepts."""

    def role_of(self, token: str) -> Role | None:
        """The role whose token it is; None for an unknown token."""
        ...


class FixedToken(msgspec.Struct, frozen=True):
    """A token that never changes."""

    token: str

    def current(self) -> str:
        """The token."""
        return self.token


def derive_token(secret: str, role: Role) -> str:
    """The token of a role of a run on one machine: 64 hexadecimal digits."""
    return hmac.digest(secret.encode(), f"tidegate call as {role}".encode(), "sha256").hex()


def digest_of_token(token: str) -> str:
    """What a server knows of a token. The token is random and long, so that a plain digest gives nothing away."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def token_file(role: Role) -> str:
    """The name of a role's file in a folder of credentials."""
    return f"{role}.token"


def encode_digests(tokens: Mapping[Role, Sequence[str]]) -> bytes:
    """``digests.json`` for the tokens that are accepted of each role."""
    digests = {role: [digest_of_token(token) for token in accepted] for role, accepted in tokens.items()}
    return msgspec.json.format(msgspec.json.encode(digests), indent=2) + b"\n"


def write_credentials(folder: Path, tokens: Mapping[Role, str]) -> None:
    """Write a folder of credentials that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for role, token in tokens.items():
        replace_file(folder / token_file(role), f"{token}\n".encode(), mode=0o600)
    digests = encode_digests({role: [token] for role, token in tokens.items()})
    replace_file(folder / DIGESTS_FILE, digests, mode=0o600)


def derived_tokens(secret: str) -> dict[Role, str]:
    """The token of every role of a run on one machine."""
    return {role: derive_token(secret, role) for role in ROLES}


class DigestTable:
    """Accepted tokens by their digests."""

    def __init__(self, digests: Mapping[str, Sequence[str]]) -> None:
        """``digests``: of the accepted tokens, by role; roles of another version are ignored."""
        self._known: list[tuple[Role, str]] = [
            (role, digest) for role in ROLES for digest in digests.get(role, ())
        ]

    def role_of(self, token: str) -> Role | None:
        """The role whose token it is; None for an unknown token. Compares digests in constant time."""
        presented = digest_of_token(token)
        for role, digest in self._known:
            if hmac.compare_digest(digest, presented):
                return role
        return None


def accepting(tokens: Mapping[Role, str]) -> DigestTable:
    """A table that accepts these tokens."""
    return DigestTable({role: [digest_of_token(token)] for role, token in tokens.items()})


class TokenFile:
    """The token in a file, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            ConfigError: the file cannot be read, or holds no token.
        """
        self._file = ChangingFile(path, _parse_token, what="call credential", fix=_FIX)

    def current(self) -> str:
        """The newest token."""
        return self._file.content()


class DigestsFile:
    """The accepted tokens in ``digests.json``, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            ConfigError: the file cannot be read, or holds no digests.
        """
        self._file = ChangingFile(path, _parse_digests, what="call credential", fix=_FIX)

    def role_of(self, token: str) -> Role | None:
        """The role whose token it is; None for an unknown token."""
        return self._file.content().role_of(token)


def _parse_token(data: bytes) -> str:
    token = data.decode("ascii").strip()
    if not token:
        raise ValueError("it is empty")
    return token


def _parse_digests(data: bytes) -> DigestTable:
    digests = msgspec.json.decode(data, type=dict[str, list[str]])
    if not any(digests.values()):
        raise ValueError("it accepts no token")
    if not all(digest.isascii() for accepted in digests.values() for digest in accepted):
        raise ValueError("a digest is not hexadecimal")
    return DigestTable(digests)


def find_token(folder: Path, role: Role) -> TokenFile:
    """The token of a role in a folder of credentials.

    Raises:
        NotFoundError: the folder lets its reader not act as this role.
        ConfigError: the file cannot be read.
    """
    path = folder / token_file(role)
    if not path.exists():
        raise NotFoundError(
            f"There is no credential to call services as {role} here",
            why=f"{path} does not exist",
            fix="start the run with `tidegate up`; in a cluster use the pod of admission, which has the operator's",
        )
    return TokenFile(path)
