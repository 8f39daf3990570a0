"""The end of a process' certificate, read with the standard library alone."""

import time
from pathlib import Path

import pytest

from tidegate.cli.certificates.openssl import issue, issue_authority, new_key
from tidegate.runtime.certificate_expiry import expires_at_s

DAY_S = 86400.0


def write(folder: Path, *, now_s: float, duration_s: float) -> None:
    """A certificate of a new authority, as a Secret holds it."""
    authority = issue_authority("tests", key=new_key(), now_s=now_s, duration_s=2 * duration_s)
    own = issue("actor", dns_names=("actor",), authority=authority, now_s=now_s, duration_s=duration_s)
    (folder / "tls.crt").write_text(own.certificate)
    (folder / "tls.key").write_text(own.key)
    (folder / "ca.crt").write_text(authority.certificate)


def test_the_end_of_a_certificate_is_read_and_follows_a_renewal(tmp_path: Path) -> None:
    now_s = time.time()
    write(tmp_path, now_s=now_s, duration_s=DAY_S)
    assert expires_at_s(tmp_path) == pytest.approx(now_s + DAY_S, abs=60.0)
    for each in tmp_path.iterdir():
        each.unlink()
    write(tmp_path, now_s=now_s, duration_s=9 * DAY_S)
    assert expires_at_s(tmp_path) == pytest.approx(now_s + 9 * DAY_S, abs=60.0)


def test_a_certificate_that_has_ended_still_says_when(tmp_path: Path) -> None:
    ended_s = time.time() - 5 * DAY_S
    write(tmp_path, now_s=ended_s - DAY_S, duration_s=DAY_S)
    assert expires_at_s(tmp_path) == pytest.approx(ended_s, abs=60.0)


def test_without_a_readable_certificate_there_is_no_end(tmp_path: Path) -> None:
    assert expires_at_s(tmp_path) is None
    (tmp_path / "tls.crt").write_text("not a certificate")
    (tmp_path / "tls.key").write_text("not a key")
    assert expires_at_s(tmp_path) is None
