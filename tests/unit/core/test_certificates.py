"""Which certificate is issued again, and why."""

import msgspec
import pytest

from tidegate.core.certificates import CertificateRequest, HeldCertificate, parse_request, why_issue
from tidegate.core.errors import ConfigError

DAY_S = 86_400.0
REQUEST = CertificateRequest(
    secret="t-actor-tls",
    common_name="actor",
    dns_names=("t-actor", "t-actor.rl.svc"),
    duration_s=90 * DAY_S,
    renew_before_s=30 * DAY_S,
)
HELD = HeldCertificate(
    common_name="actor",
    dns_names=("t-actor.rl.svc", "t-actor"),
    not_before_s=0.0,
    not_after_s=90 * DAY_S,
    is_trusted=True,
)


def test_certificate_stays_until_the_time_before_its_end() -> None:
    assert why_issue(HELD, REQUEST, now_s=0.0) == ""
    assert why_issue(HELD, REQUEST, now_s=60 * DAY_S - 1.0) == ""
    assert why_issue(HELD, REQUEST, now_s=60 * DAY_S) == "it expires"
    assert why_issue(HELD, REQUEST, now_s=100 * DAY_S) == "it expires"


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (None, "there is none"),
        (msgspec.structs.replace(HELD, is_trusted=False), "not of this authority"),
        (msgspec.structs.replace(HELD, common_name="learner"), "names are others"),
        (msgspec.structs.replace(HELD, dns_names=("t-actor",)), "names are others"),
        (msgspec.structs.replace(HELD, not_before_s=2 * DAY_S), "not valid yet"),
        (msgspec.structs.replace(HELD, not_after_s=900 * DAY_S), "longer than is asked for"),
    ],
)
def test_certificate_that_does_not_serve_is_issued_again(held: HeldCertificate | None, reason: str) -> None:
    assert reason in why_issue(held, REQUEST, now_s=DAY_S)


def test_request_is_read_from_an_argument() -> None:
    text = "t-nats-tls=nats,t-nats,*.t-nats-peers"
    request = parse_request(text, duration_s=2.0, renew_before_s=1.0)
    assert request == CertificateRequest("t-nats-tls", "nats", ("t-nats", "*.t-nats-peers"), 2.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t-nats-tls",
        "t-nats-tls=",
        "t-nats-tls=nats",
        "=nats,t-nats",
        "a=b,",
        "a=b,c\nd",
        "a=b,c/CN=d",
        "a=B,c",
    ],
)
def test_argument_that_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_request(text, duration_s=2.0, renew_before_s=1.0)


@pytest.mark.parametrize("renew_before_s", [0.0, 2.0, 3.0])
def test_time_before_the_end_that_would_renew_at_each_look_is_refused(renew_before_s: float) -> None:
    with pytest.raises(ConfigError, match="cannot be renewed"):
        parse_request("a=b,c", duration_s=2.0, renew_before_s=renew_before_s)
