"""Certificates as openssl issues them: whom they name, for what and how long, and when they are issued again."""

import re
import ssl
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import needs_openssl
from tidegate.cli.app import run
from tidegate.cli.certificates import openssl
from tidegate.cli.certificates.command import (
    AUTHORITY_DURATION_S,
    missing_authority,
    missing_certificate,
    renew,
)
from tidegate.cli.certificates.openssl import (
    Issued,
    is_key_of,
    is_signed_by,
    issue,
    issue_authority,
    new_key,
    read_certificate,
)
from tidegate.cli.credentials import Missing
from tidegate.core.certificates import CLOCK_SKEW_S, CertificateRequest
from tidegate.core.errors import ConfigError, TidegateError

pytestmark = needs_openssl

NOW_S = 1_900_000_000.0  # in 2030
DAY_S = 86_400.0
NAMES = ("t-actor", "t-actor.rl.svc", "*.t-actor-peers")


@pytest.fixture(scope="module")
def authority() -> Issued:
    return issue_authority("t-authority", key=new_key(), now_s=NOW_S, duration_s=1000 * DAY_S)


@pytest.fixture(scope="module")
def issued(authority: Issued) -> Issued:
    return issue("actor", dns_names=NAMES, authority=authority, now_s=NOW_S, duration_s=90 * DAY_S)


def text_of(certificate: str) -> str:
    command = ["openssl", "x509", "-noout", "-text"]
    return subprocess.run(command, input=certificate, capture_output=True, text=True, check=True).stdout


def request(**changes: float) -> CertificateRequest:
    times = {"duration_s": 90 * DAY_S, "renew_before_s": 30 * DAY_S, **changes}
    return CertificateRequest(secret="t-actor-tls", common_name="actor", dns_names=NAMES, **times)


class Secrets:
    """Secrets as they are kept, by name."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, str]] = {}

    async def fill(self, secret: str, missing: Missing) -> Sequence[str]:
        made = missing(self.kept.get(secret, {}))
        self.kept[secret] = {**self.kept.get(secret, {}), **made}
        return list(made)


def test_certificate_says_whom_it_names_and_until_when(issued: Issued) -> None:
    content = read_certificate(issued.certificate)
    assert content is not None
    assert (content.common_name, content.dns_names) == ("actor", NAMES)
    assert (content.not_before_s, content.not_after_s) == (NOW_S - CLOCK_SKEW_S, NOW_S + 90 * DAY_S)
    assert read_certificate("no certificate") is None


def test_certificate_is_for_both_sides_of_a_connection_and_signs_nothing(issued: Issued) -> None:
    text = text_of(issued.certificate)
    assert re.search(r"Basic Constraints: critical\s+CA:FALSE", text)
    assert re.search(r"X509v3 Key Usage: critical\s+Digital Signature\n", text)
    assert re.search(
        r"Extended Key Usage: *\n\s+TLS Web Server Authentication, TLS Web Client Authentication\n", text
    )
    assert "ASN1 OID: prime256v1" in text
    assert "ecdsa-with-SHA256" in text


def test_authority_signs_certificates_and_no_authorities(authority: Issued) -> None:
    text = text_of(authority.certificate)
    assert re.search(r"Basic Constraints: critical\s+CA:TRUE, pathlen:0", text)
    assert re.search(r"X509v3 Key Usage: critical\s+Certificate Sign, CRL Sign\n", text)


def test_certificate_is_of_its_authority_and_key_alone(authority: Issued, issued: Issued) -> None:
    other = issue_authority("t-authority", key=new_key(), now_s=NOW_S, duration_s=DAY_S)
    assert is_signed_by(issued.certificate, authority.certificate)
    assert not is_signed_by(issued.certificate, other.certificate)
    assert is_key_of(issued.key, issued.certificate)
    assert not is_key_of(other.key, issued.certificate)
    assert not is_key_of("", issued.certificate)


def test_certificates_have_serial_numbers_of_their_own(authority: Issued) -> None:
    made = [
        text_of(issue("a", dns_names=("b",), authority=authority, now_s=NOW_S, duration_s=1.0).certificate)
        for _ in range(2)
    ]
    serials = {re.findall(r"Serial Number:\s+([0-9a-f:]+)", text)[0] for text in made}
    assert len(serials) == 2


def test_renewed_authority_and_the_earlier_one_accept_each_others_certificates(authority: Issued) -> None:
    made, reason = missing_authority(
        {"tls.crt": authority.certificate, "tls.key": authority.key},
        "t-authority",
        now_s=NOW_S + 950 * DAY_S,
        needed_s=90 * DAY_S,
    )
    assert "expires" in reason
    renewed = Issued(made["tls.crt"], made["tls.key"])
    assert renewed.key == authority.key
    for signer, trusted in ((authority, renewed), (renewed, authority)):
        one = issue("a", dns_names=("b",), authority=signer, now_s=NOW_S, duration_s=DAY_S)
        assert is_signed_by(one.certificate, trusted.certificate)
    content = read_certificate(renewed.certificate)
    assert content is not None
    assert content.not_after_s == NOW_S + 950 * DAY_S + AUTHORITY_DURATION_S


def test_authority_that_can_sign_for_long_enough_stays(authority: Issued) -> None:
    present = {"tls.crt": authority.certificate, "tls.key": authority.key}
    assert missing_authority(present, "t-authority", now_s=NOW_S, needed_s=90 * DAY_S) == ({}, "")


@pytest.mark.parametrize("lost", ["tls.crt", "tls.key"])
def test_authority_that_lost_its_certificate_or_key_is_another(authority: Issued, lost: str) -> None:
    present = {"tls.crt": authority.certificate, "tls.key": authority.key}
    del present[lost]
    made, _ = missing_authority(present, "t-authority", now_s=NOW_S, needed_s=DAY_S)
    assert made["tls.key"] != authority.key
    assert is_key_of(made["tls.key"], made["tls.crt"])


@pytest.mark.slow
def test_renewal_issues_what_is_due_and_keeps_the_rest(authority: Issued, issued: Issued) -> None:
    present = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": authority.certificate}

    def due(present: Mapping[str, str], asked: CertificateRequest, *, day: float) -> set[str]:
        return set(missing_certificate(present, asked, authority, now_s=NOW_S + day * DAY_S)[0])

    all_three = {"tls.crt", "tls.key", "ca.crt"}
    assert due(present, request(), day=1) == set()
    assert due(present, request(), day=61) == all_three
    assert due(present, request(renew_before_s=89.5 * DAY_S), day=1) == all_three
    assert due({}, request(), day=1) == all_three
    assert due({**present, "tls.key": new_key()}, request(), day=1) == all_three
    assert due({**present, "ca.crt": "earlier"}, request(), day=1) == {"ca.crt"}


@pytest.mark.slow
async def test_second_job_changes_nothing_and_a_later_one_renews() -> None:
    secrets = Secrets()
    asked = [
        CertificateRequest(f"t-{name}-tls", name, (f"t-{name}",), 90 * DAY_S, 30 * DAY_S)
        for name in ("actor", "learner")
    ]
    lines = await renew(secrets.fill, "t-authority", asked, now_s=NOW_S)
    before = {name: dict(kept) for name, kept in secrets.kept.items()}
    assert set(before) == {"t-authority", "t-actor-tls", "t-learner-tls"}
    assert set(before["t-actor-tls"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert before["t-actor-tls"]["ca.crt"] == before["t-authority"]["tls.crt"]
    assert len({kept["tls.key"] for kept in before.values()}) == 3
    assert all("issued" in line for line in lines)
    lines = await renew(secrets.fill, "t-authority", asked, now_s=NOW_S + DAY_S)
    assert secrets.kept == before
    assert all("kept" in line for line in lines)
    lines = await renew(secrets.fill, "t-authority", asked, now_s=NOW_S + 70 * DAY_S)
    assert secrets.kept["t-authority"] == before["t-authority"]
    assert secrets.kept["t-actor-tls"]["tls.crt"] != before["t-actor-tls"]["tls.crt"]
    key_lines = {line for kept in before.values() for line in kept["tls.key"].splitlines()[1:-1]}
    assert not any(part in line for line in lines for part in key_lines)


def test_folder_holds_files_that_a_server_reads_and_only_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "certificates",
        f"--folder={tmp_path / 'made'}",
        "--authority=ca",
        "--certificate=actor-tls=actor,localhost",
        "--duration=48h",
        "--renew-before=24h",
    ]
    assert run(arguments) == 0
    output = capsys.readouterr()
    assert output.out.count("issued") == 2
    assert "PRIVATE" not in output.out + output.err
    folder = tmp_path / "made" / "actor-tls"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {file.name for file in folder.iterdir()} == {"tls.crt", "tls.key", "ca.crt"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    before = (folder / "tls.crt").read_bytes()
    assert run(arguments) == 0
    assert capsys.readouterr().out.count("kept") == 2
    assert (folder / "tls.crt").read_bytes() == before


def test_keys_are_in_no_argument_and_no_file_outlives_the_call(
    authority: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    modes: set[int] = set()
    start: Any = subprocess.run

    def noting(command: list[str], *, cwd: Path, **options: Any) -> object:
        seen.extend(command)
        modes.update(stat.S_IMODE(file.stat().st_mode) for file in cwd.glob("*.key"))
        assert stat.S_IMODE(cwd.stat().st_mode) == 0o700
        return start(command, cwd=cwd, **options)

    monkeypatch.setattr(openssl.subprocess, "run", noting)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    issue("a", dns_names=("b",), authority=authority, now_s=NOW_S, duration_s=1.0)
    assert modes == {0o600}
    assert not any("PRIVATE" in part for part in seen)
    assert not list(tmp_path.iterdir())


def test_machine_without_openssl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "PROGRAM", "no-such-program")
    with pytest.raises(ConfigError, match="no openssl"):
        new_key()


def test_failure_names_the_step_and_shows_no_key(authority: Issued) -> None:
    with pytest.raises(TidegateError, match="openssl") as raised:
        issue("a", dns_names=("b",), authority=Issued("none", authority.key), now_s=NOW_S, duration_s=1.0)
    assert "PRIVATE" not in f"{raised.value.what}{raised.value.why}"
