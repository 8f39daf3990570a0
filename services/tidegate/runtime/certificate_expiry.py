"""When a process' certificate ends, for the alert that its renewal failed (issue 18)."""

import ssl
from functools import lru_cache
from pathlib import Path

from tidegate.runtime.files import change_mark
from tidegate.runtime.tls import CERTIFICATE, KEY

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL: a certificate that has ended is read as well.
_ANY_TIME = 0x200000


def expires_at_s(folder: Path) -> float | None:
    """Unix time at which the certificate of a folder ends; None while its files cannot be read."""
    try:
        return _read(folder, change_mark(folder / CERTIFICATE))
    except OSError:  # a renewal replaces the files together; ssl.SSLError is one
        return None


@lru_cache(maxsize=4)
def _read(folder: Path, _mark: tuple[int, int]) -> float:
    """From a handshake in memory: the standard library decodes only the certificate of a peer."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_ANY_TIME)
    client.load_verify_locations(folder / CERTIFICATE)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    decoded = asking.getpeercert()
    if decoded is None:
        raise ssl.SSLError(f"no certificate in {folder}")
    return float(ssl.cert_time_to_seconds(str(decoded["notAfter"])))
