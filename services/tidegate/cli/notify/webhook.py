"""Posts a notice: bounded tries with a deadline each, and no word of the address or a header in what it says."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

# Together less than a minute: 4 tries of 8 s, and the pauses between them.
TRIES, TIMEOUT_S = 4, 8.0
PAUSES_S = (1.0, 3.0, 9.0)
# Answers after which another try may succeed.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the secret in a header or the address to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    pause: Callable[[float], None],
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Post JSON; returns why it was not delivered, empty if it was."""
    opener = urllib.request.build_opener(_NoRedirects)
    problem = ""
    for number in range(TRIES):
        if number:
            pause(PAUSES_S[number - 1])
        try:
            request = urllib.request.Request(
                url, data=body, headers={"Content-Type": "application/json", **headers}, method="POST"
            )
            with opener.open(request, timeout=timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"it answered {error.code}"
            error.close()
            if error.code not in TRANSIENT:
                return problem
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Its text may contain the address.
            reason = getattr(error, "reason", None)
            problem = type(reason if isinstance(reason, Exception) else error).__name__
    return f"{problem}, {TRIES} times"
