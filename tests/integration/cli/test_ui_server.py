"""The page's server over real run folders."""

import asyncio
import re
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.unit.cli.run_folder import write_accounting, write_samples
from tests.unit.cli.ui.completions import FIRST, write_completions
from tidegate.cli.run_list import RunFolders, RunLine
from tidegate.cli.ui import server as server_module
from tidegate.cli.ui.curves import Curves
from tidegate.cli.ui.server import FILES, STATIC, UiServer
from tidegate.core.errors import CorruptionError
from tidegate.runtime.ports import LOOPBACK

pytestmark = pytest.mark.integration


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_accounting(tmp_path / "segments")
    write_samples(tmp_path / "segments")
    write_completions(tmp_path / "completions")
    return tmp_path


@pytest.fixture
async def page(place: Path) -> AsyncIterator[aiohttp.ClientSession]:
    server = UiServer(RunFolders(place))
    await server.start(host=LOOPBACK, port=0)
    async with aiohttp.ClientSession(f"http://{server.address}") as session:
        yield session
    await server.close()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/static/plotly.js",
        *(f"/static/{name}" for name in FILES),
        "/api/runs",
        "/api/runs/segments",
        "/api/runs/segments/curves",
        "/api/runs/segments/moment",
        "/api/runs/segments/flow",
        "/api/runs/segments/trajectories?state=trained&lag_min=1",
        "/api/runs/segments/versions?before=2",
        f"/api/runs/completions/trajectories/{FIRST}",
        f"/api/runs/completions/trajectories/{FIRST}/tokens",
        # A run whose learner never trained has all answers too.
        "/api/runs/completions",
        "/api/runs/completions/curves",
        "/api/runs/completions/moment",
        "/api/runs/completions/flow",
        "/api/runs/completions/versions",
    ],
)
async def test_everything_the_page_asks_is_answered_and_closed_to_other_sites(
    page: aiohttp.ClientSession, path: str
) -> None:
    async with page.get(path) as answer:
        assert answer.status == 200, await answer.text()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        if path.startswith("/api"):
            assert msgspec.json.decode(await answer.read()) is not None


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_the_charts_library_and_long_answers_are_compressed_for_browsers_that_take_it(
    page: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(server_module, "PLAIN_BYTES_MAX", 100)
    for path in ("/static/plotly.js", "/api/runs"):
        async with page.get(path, headers={"Accept-Encoding": encoding}) as answer:
            assert answer.headers.get("Content-Encoding", "identity") == encoding
            found = await answer.text()  # decoded
        async with page.get(path, headers={"Accept-Encoding": "identity"}) as plain:
            assert await plain.text() == found


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/runs/none", 404, "no run 'none'"),
        ("/api/runs/..%2F..%2Fetc", 404, "no run"),
        ("/api/runs/segments/trajectories/t-7", 404, "never admitted"),
        ("/api/runs/segments/trajectories?lag_min=many", 400, "filter cannot be read"),
        ("/api/runs/segments/trajectories?before=x", 400, "filter cannot be read"),
        ("/api/runs/segments/trajectories?seq%3D1%3B--=1", 400, "no field"),
        ("/static/..%2Fserver.py", 404, "no such file"),
    ],
)
async def test_wrong_address_gets_a_sentence(
    page: aiohttp.ClientSession, path: str, status: int, sentence: str
) -> None:
    async with page.get(path) as answer:
        assert answer.status == status
        assert sentence in (await answer.json())["error"]


async def test_filter_value_is_a_value_and_no_sql(page: aiohttp.ClientSession) -> None:
    async with page.get("/api/runs/segments/trajectories", params={"state": "' OR 1=1 --"}) as answer:
        assert await answer.json() == []


async def test_damaged_ledger_is_one_sentence_and_the_server_goes_on(
    page: aiohttp.ClientSession, place: Path
) -> None:
    ledger = place / "segments" / "trajectory_store" / "ledger.sqlite"
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        ledger.with_name(name).unlink(missing_ok=True)
    ledger.write_bytes(b"no database at all" * 500)
    async with page.get("/api/runs/segments/trajectories") as answer:
        assert answer.status == 500
        assert "ledger" in (await answer.json())["error"]
    async with page.get("/api/runs") as answer:
        assert answer.status == 200


async def test_file_that_cannot_be_read_is_one_sentence(page: aiohttp.ClientSession, place: Path) -> None:
    (place / "segments" / "events.jsonl").mkdir()
    async with page.get("/api/runs/segments") as answer:
        assert answer.status == 500
        assert "events.jsonl cannot be read: Is a directory" in (await answer.json())["error"]


async def test_flow_is_counted_again_after_the_ledger_changed(
    page: aiohttp.ClientSession, place: Path
) -> None:
    async def states() -> dict[str, int]:
        async with page.get("/api/runs/segments/flow") as answer:
            return (await answer.json())["states"]

    assert (await states())["trained"] == 6
    assert (await states())["trained"] == 6
    shutil.rmtree(place / "segments")
    write_accounting(place / "segments", batches=4)
    assert (await states())["trained"] == 8


async def test_path_or_method_that_nothing_has_is_refused_like_all_else(page: aiohttp.ClientSession) -> None:
    for answered in (page.get("/nothing"), page.post("/api/runs")):
        async with answered as answer:
            assert answer.status in (404, 405)
            assert "This server has no" in (await answer.json())["error"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_foreign_host_is_refused(page: aiohttp.ClientSession) -> None:
    async with page.get("/api/runs", headers={"Host": "evil.example"}) as answer:
        assert answer.status == 403


async def test_run_that_ended_is_told_once_and_its_stream_ends(page: aiohttp.ClientSession) -> None:
    async with page.get("/api/runs/segments/live") as answer:
        body = await answer.text()
    (event,) = re.findall(r"^data: (.*)$", body, re.MULTILINE)
    told = msgspec.json.decode(event)
    assert told["line"]["step"] == 3
    assert told["moment"]["bottleneck"] == "actor"


@pytest.mark.parametrize("error", [FileNotFoundError("it is gone"), CorruptionError("run.json is cut")])
async def test_stream_ends_where_its_run_can_be_read_no_more(
    page: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    moments = iter([{"bottleneck": "actor"}])

    def line_of(folder: Path) -> RunLine:
        return RunLine(name=folder.name, state="running")

    def moment_of(_folder: Path) -> dict[str, str]:
        for moment in moments:
            return moment
        raise error

    monkeypatch.setattr(server_module, "LIVE_PERIOD_S", 0.01)
    monkeypatch.setattr(server_module, "line_of", line_of)
    monkeypatch.setattr(server_module, "moment_of", moment_of)
    async with page.get("/api/runs/segments/live") as answer:
        body = await answer.text()
    assert len(re.findall(r"^data: ", body, re.MULTILINE)) == 1
    assert "HTTP/1.1" not in body
    async with page.get("/api/runs") as answer:
        assert answer.status == 200


async def test_streams_are_bounded(page: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STREAMS_MAX", 0)
    async with page.get("/api/runs/segments/live") as answer:
        assert answer.status == 503


async def test_page_that_goes_away_lets_no_second_reader_at_its_curves(
    page: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, may_end, inside = threading.Event(), threading.Event(), list[int]()
    most = 0

    def follow(_self: Curves) -> int:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        started.set()
        may_end.wait(timeout=60.0)
        inside.pop()
        return 0

    async def ask() -> int:
        async with page.get("/api/runs/segments/curves") as answer:
            return answer.status

    monkeypatch.setattr(Curves, "follow", follow)
    first = asyncio.create_task(ask())
    await asyncio.to_thread(started.wait, 60.0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(ask())
    for _ in range(20):  # the server notices that the first is gone, and takes the second
        async with page.get("/api/runs") as answer:
            assert answer.status == 200
    may_end.set()
    assert await second == 200
    assert most == 1


async def test_token_opens_the_page_once_and_the_cookie_from_then_on(place: Path) -> None:
    server = UiServer(RunFolders(place), token="secret")
    await server.start(host=LOOPBACK, port=0)
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address that is no name
    async with aiohttp.ClientSession(f"http://{server.address}", cookie_jar=jar) as session:
        for path in ("/", "/static/page.js", "/api/runs", "/?token=wrong"):
            async with session.get(path) as answer:
                assert answer.status == 401
        async with session.get("/api/runs", headers={"Authorization": "Bearer secret"}) as answer:
            assert answer.status == 200
        async with session.get("/?token=secret", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            assert "HttpOnly" in answer.headers["Set-Cookie"]
        async with session.get("/api/runs") as answer:
            assert answer.status == 200
    await server.close()


async def test_address_of_a_host_by_its_number_can_be_opened(place: Path) -> None:
    server = UiServer(RunFolders(place))
    await server.start(host="::1", port=0)
    try:
        assert server.address.startswith("[::1]:")
    finally:
        await server.close()


def test_page_names_no_other_host_and_sets_no_markup() -> None:
    for path in (STATIC / "index.html", *(path for path, _ in FILES.values())):
        text = path.read_text()
        assert not re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
