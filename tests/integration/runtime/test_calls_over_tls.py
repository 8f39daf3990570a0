"""A certificate and a token, both: every method over mutual TLS, by callers that lack the one or the other."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from tests.integration.runtime.test_call_authentication import (
    DENIED,
    METHODS,
    TIMEOUT_S,
    UNAUTHENTICATED,
    Platform,
    message_of,
)
from tests.support.call_credentials import token_of
from tests.support.calls import path_of, status_of
from tests.support.certificates import make_identity, needs_openssl
from tidegate.runtime.authenticated_channel import AuthenticatedChannel
from tidegate.runtime.call_credentials import CallToken, FixedToken, derive_token
from tidegate.runtime.tls import FOLDER_VARIABLE, channel_credentials, read_identity
from tidegate.wire.call_permissions import ROLES, Role, callers_of

pytestmark = [pytest.mark.integration, needs_openssl]
# No connection, so that no call left the client.
UNREACHED = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the run's authority, and of another one."""
    folder = tmp_path_factory.mktemp("identities")
    make_identity(folder / "own")
    make_identity(folder / "other")
    return folder


@pytest.fixture
async def platform(identities: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(identities / "own"))
    platform = Platform()
    await platform.server.start(platform.address)
    yield platform
    await platform.server.stop(grace_s=0)


@pytest.mark.parametrize("method", METHODS, ids=path_of)
async def test_certificate_of_the_run_is_no_credential(platform: Platform, method: MethodDescriptor) -> None:
    callers = callers_of(method.containing_service.full_name, method.name)
    for token in (
        None,
        FixedToken(""),
        FixedToken("guess"),
        FixedToken(derive_token("another run", "operator")),
    ):
        status = await platform.call(method, token)
        assert status is (grpc.StatusCode.OK if callers is None else UNAUTHENTICATED)
    for role in ROLES:
        allowed = callers is None or role in callers
        assert await platform.call(method, token_of(role)) is (grpc.StatusCode.OK if allowed else DENIED), (
            role
        )
    assert platform.reached == [path_of(method)] * (len(ROLES) + 4 if callers is None else len(callers))


def _role_that_may(method: MethodDescriptor) -> Role:
    callers = callers_of(method.containing_service.full_name, method.name)
    return callers[0] if callers else "operator"


def channels_without_a_certificate_of_the_run(address: str, identities: Path) -> dict[str, grpc.aio.Channel]:
    """As a stranger opens them who has stolen a token."""
    own, other = read_identity(identities / "own"), read_identity(identities / "other")
    authority_only = grpc.ssl_channel_credentials(own.authority)
    foreign = grpc.ssl_channel_credentials(own.authority, other.key, other.certificate)
    return {
        "plain text": grpc.aio.insecure_channel(address),
        "no certificate": grpc.aio.secure_channel(address, authority_only),
        "a certificate of another authority": grpc.aio.secure_channel(address, foreign),
    }


async def test_token_of_the_right_role_without_a_certificate_of_the_run_reaches_no_method(
    platform: Platform, identities: Path
) -> None:
    for what, bare in channels_without_a_certificate_of_the_run(platform.address, identities).items():
        for method in METHODS:
            token: CallToken = token_of(_role_that_may(method))
            request = message_of(method, "input_type")().SerializeToString()
            channel = AuthenticatedChannel(bare, token)
            status = await status_of(channel, method, [request], timeout_s=TIMEOUT_S)
            assert status is UNREACHED, f"{path_of(method)} over {what}"
        await bare.close()
    assert platform.reached == []
    # The same token with the certificate is answered: what refused above was the lack of it.
    method = METHODS[0]
    own = grpc.aio.secure_channel(platform.address, channel_credentials(read_identity(identities / "own")))
    channel = AuthenticatedChannel(own, token_of(_role_that_may(method)))
    request = message_of(method, "input_type")().SerializeToString()
    assert await status_of(channel, method, [request], timeout_s=TIMEOUT_S) is grpc.StatusCode.OK
    await own.close()


async def test_port_for_health_is_in_plain_text_and_serves_no_method(platform: Platform) -> None:
    host, _, port = platform.address.rpartition(":")
    channel = AuthenticatedChannel(grpc.aio.insecure_channel(f"{host}:{int(port) + 1}"), token_of("operator"))
    for method in METHODS:
        request = message_of(method, "input_type")().SerializeToString()
        status = await status_of(channel, method, [request], timeout_s=TIMEOUT_S)
        assert status is grpc.StatusCode.UNIMPLEMENTED, path_of(method)
    await channel.close()
    assert platform.reached == []
