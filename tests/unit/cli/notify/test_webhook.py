"""What a webhook gets, from a server that answers as each case says."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.cli.notify.webhook import TRIES, post


class Received:
    """What a server got."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def server(*codes: int) -> Generator[tuple[str, Received]]:
    """Answers the codes one after the other, the last one for ever; 0: does not answer."""
    received, over = Received(list(codes)), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            received.headers.append(dict(self.headers))
            code = received.codes.pop(0) if len(received.codes) > 1 else received.codes[0]
            if code == 0:
                over.wait(30)
                return
            self.send_response(code)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_address[1]}/hooks/secret-path", received
    finally:
        over.set()
        found.shutdown()
        found.server_close()


def test_notice_arrives_with_its_headers() -> None:
    with server(204) as (url, received):
        assert post(url, {"Authorization": "Bearer x"}, b'{"event":"end"}', pause=lambda _: None) == ""
    assert received.bodies == [{"event": "end"}]
    assert received.headers[0]["Authorization"] == "Bearer x"


def test_busy_server_is_tried_again_after_growing_pauses() -> None:
    pauses: list[float] = []
    with server(503, 429, 200) as (url, received):
        assert post(url, {}, b"{}", pause=pauses.append) == ""
    assert len(received.bodies) == 3
    assert pauses == sorted(pauses)


def test_refusal_is_final_and_a_redirect_is_not_followed() -> None:
    for code in (404, 302):
        with server(code) as (url, received):
            assert str(code) in post(url, {}, b"{}", pause=lambda _: None)
        assert len(received.bodies) == 1


def test_silent_server_costs_its_tries_and_the_problem_says_no_secret() -> None:
    with server(0) as (url, _):
        problem = post(url, {"Token": "secret-token"}, b"{}", pause=lambda _: None, timeout_s=0.05)
    assert f"{TRIES} times" in problem
    for bad in (url, "http://127.0.0.1:1/secret-path", "http://[secret-path/", "http://secret-path:x/"):
        problem = post(bad, {"Token": "secret-token\n"}, b"{}", pause=lambda _: None, timeout_s=0.05)
        assert problem
        assert "secret" not in problem
