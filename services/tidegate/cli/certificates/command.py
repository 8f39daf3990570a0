"""``tidegate certificates``: issue the certificates of a release, and renew them before they expire.

The chart renders Secrets without data; its Job and CronJob, which may read and patch only these Secrets, fill them. One
Secret holds the authority, which no pod mounts; each other one a certificate, its key and the authority's certificate.
The authority's certificate is renewed with its key: certificates from before and after are of one authority.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.certificates.openssl import (
    Issued,
    is_key_of,
    is_signed_by,
    issue,
    issue_authority,
    new_key,
    read_certificate,
)
from tidegate.cli.credentials import DEADLINE_S, NAMESPACE_VARIABLE, Missing, fill_secret
from tidegate.core.certificates import CertificateRequest, HeldCertificate, parse_request, why_issue
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import ConfigError
from tidegate.runtime.files import replace_file
from tidegate.runtime.kubernetes_api import connect
from tidegate.runtime.tls import AUTHORITY, CERTIFICATE, KEY

FIELD_MANAGER = "tidegate-certificates"
AUTHORITY_DURATION_S = 10 * 365 * 86_400.0

# Writes what a Secret lacks; returns the written keys.
Fill = Callable[[str, Missing], Awaitable[Sequence[str]]]


def certificates(
    authority: Annotated[str, typer.Option(help="Secret of the authority.")],
    certificate: Annotated[
        list[str], typer.Option(help="SECRET=COMMON_NAME,DNS_NAME,...: a certificate to issue; repeatable.")
    ],
    duration: Annotated[str, typer.Option(help="How long a certificate is valid.")] = "2160h",
    renew_before: Annotated[str, typer.Option(help="How long before its end it is renewed.")] = "720h",
    folder: Annotated[
        Path | None, typer.Option(help="Keep a folder for each Secret there, instead of in the cluster.")
    ] = None,
) -> None:
    """Issue the certificates of a release that are missing or expire soon. Run by the chart's Job and CronJob."""
    requests = [
        parse_request(text, duration_s=parse_duration(duration), renew_before_s=parse_duration(renew_before))
        for text in certificate
    ]
    if folder is not None:
        lines = asyncio.run(renew(partial(_fill_folder, folder), authority, requests, now_s=time.time()))
    else:
        lines = asyncio.run(_renew_in_cluster(authority, requests))
    for line in lines:
        typer.echo(line)


async def renew(
    fill: Fill, authority: str, requests: Sequence[CertificateRequest], *, now_s: float
) -> list[str]:
    """Issue what is due, the authority first; a line for each Secret."""
    done: dict[str, str] = {}  # by Secret: what a conflict repeats is one line
    found: dict[str, str] = {}
    # No certificate is valid for longer than the authority that signed it.
    duration_max_s = max(request.duration_s for request in requests)

    def of_authority(present: Mapping[str, str]) -> dict[str, str]:
        made, reason = missing_authority(present, authority, now_s=now_s, needed_s=duration_max_s)
        found.update({**present, **made})
        done[authority] = f"issued: {reason}" if reason else "kept"
        return made

    await fill(authority, of_authority)
    own = Issued(found[CERTIFICATE], found[KEY])

    def of_service(present: Mapping[str, str], request: CertificateRequest) -> dict[str, str]:
        made, reason = missing_certificate(present, request, own, now_s=now_s)
        done[request.secret] = f"issued: {reason}" if reason else "kept"
        return made

    for request in requests:
        await fill(request.secret, partial(of_service, request=request))
    return [f"{secret}: {result}" for secret, result in done.items()]


def missing_authority(
    present: Mapping[str, str], name: str, *, now_s: float, needed_s: float
) -> tuple[dict[str, str], str]:
    """The authority that a Secret lacks, and why; nothing where it can sign for ``needed_s`` more."""
    key, certificate = present.get(KEY, ""), present.get(CERTIFICATE, "")
    content = read_certificate(certificate) if certificate and key else None
    if content is None or not is_key_of(key, certificate):
        key, reason = new_key(), "there is none"
    elif content.not_after_s - now_s < needed_s:
        reason = "it expires; its key stays"
    else:
        return {}, ""
    made = issue_authority(name, key=key, now_s=now_s, duration_s=max(AUTHORITY_DURATION_S, 2 * needed_s))
    return {CERTIFICATE: made.certificate, KEY: made.key}, reason


def missing_certificate(
    present: Mapping[str, str], request: CertificateRequest, authority: Issued, *, now_s: float
) -> tuple[dict[str, str], str]:
    """The certificate that a Secret lacks, and why; nothing where the one that is there stays."""
    reason = why_issue(held_certificate(present, authority), request, now_s=now_s)
    if reason:
        made = issue(
            request.common_name,
            dns_names=request.dns_names,
            authority=authority,
            now_s=now_s,
            duration_s=request.duration_s,
        )
        return {
            CERTIFICATE: made.certificate,
            KEY: made.key,
            AUTHORITY: authority.certificate,
        }, reason
    if present.get(AUTHORITY) != authority.certificate:
        return {AUTHORITY: authority.certificate}, "the authority's certificate was renewed"
    return {}, ""


def held_certificate(present: Mapping[str, str], authority: Issued) -> HeldCertificate | None:
    """The certificate of a Secret; None where there is none."""
    certificate, key = present.get(CERTIFICATE, ""), present.get(KEY, "")
    content = read_certificate(certificate) if certificate else None
    if content is None:
        return None
    return HeldCertificate(
        common_name=content.common_name,
        dns_names=content.dns_names,
        not_before_s=content.not_before_s,
        not_after_s=content.not_after_s,
        is_trusted=is_signed_by(certificate, authority.certificate) and is_key_of(key, certificate),
    )


async def _renew_in_cluster(authority: str, requests: Sequence[CertificateRequest]) -> list[str]:
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        raise ConfigError(
            f"{NAMESPACE_VARIABLE} is not set",
            why="without --folder this command runs in a pod",
            fix="let the chart's Job run it, or write the certificates to a --folder",
        )
    api = await connect(deadline_s=DEADLINE_S, in_cluster=True, field_manager=FIELD_MANAGER)

    async def fill(secret: str, missing: Missing) -> Sequence[str]:
        return await fill_secret(api, secret, namespace=namespace, missing=missing)

    try:
        return await renew(fill, authority, requests, now_s=time.time())
    finally:
        await api.close()


async def _fill_folder(root: Path, secret: str, missing: Missing) -> Sequence[str]:
    folder = root / secret
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    present = {
        name: (folder / name).read_text(encoding="ascii")
        for name in (CERTIFICATE, KEY, AUTHORITY)
        if (folder / name).exists()
    }
    made = missing(present)
    for name, text in made.items():
        replace_file(folder / name, text.encode(), mode=0o600)
    return list(made)
