"""The HTTP server of the page: static files, answers as JSON, and the moment of a live run as server-sent events.

Reading files blocks, so each answer is made in a thread, at most ``READERS`` at once.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from tidegate.catalogue.services import statistics_of
from tidegate.cli.report.style import STYLE_FILE
from tidegate.cli.run_list import RunFolders, line_of
from tidegate.cli.token_gaps import largest_gaps
from tidegate.cli.ui.curves import Curves
from tidegate.cli.ui.guard import COOKIE, HEADERS, host_is_expected, token_is_right
from tidegate.cli.ui.run_page import STORE_FOLDER, WorkFlowAnswer, facts_of, moment_of
from tidegate.cli.ui.trajectory_page import tokens_of, trajectory_of
from tidegate.core.errors import ConfigError, NotFoundError, TidegateError
from tidegate.runtime.bearer import same_secret
from tidegate.trajectory_store.browsing import Filter, page_of, updates_of

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
AnswerT = TypeVar("AnswerT")
KeptT = TypeVar("KeptT")

STATIC = Path(__file__).with_name("static")
MODULES = ("page", "asking", "charts", "curves", "elements", "overview", "runs", "trajectories", "trajectory")
FILES = {
    **{f"{name}.js": (STATIC / f"{name}.js", "text/javascript") for name in MODULES},
    "page.css": (STATIC / "page.css", "text/css"),
    "style.css": (STYLE_FILE, "text/css"),
}
READERS = 4
# A page that is open holds one; beyond it a page shows the moment of its last load.
STREAMS_MAX = 32
# Runs whose curves and flow are in memory.
RUNS_IN_MEMORY = 16
LIVE_PERIOD_S = 1.0
SHUTDOWN_S = 1.0
# Larger answers are compressed for browsers that take it: a page may be open through `kubectl port-forward` or a proxy.
PLAIN_BYTES_MAX = 32 << 10
# Of the curves, by name: the learner's statistics are what its log of updates holds.
MEANINGS = {str(statistic): statistic.meaning for statistic in statistics_of("learner")}
QUERY_FIELDS = set(Filter.__struct_fields__) | {"before"}


class UiServer:
    """Serves between ``start`` and ``close``. ``address`` is host:port once it has started."""

    def __init__(self, runs: RunFolders, *, token: str = "") -> None:
        """``token``: what a request must carry; empty: none, for a server on loopback."""
        self._runs = runs
        self._token = token
        self._readers = asyncio.Semaphore(READERS)
        self._curves = InMemory(Curves)
        self._flows = InMemory(WorkFlowAnswer)
        self._num_streams = 0
        self._plotly_gzip = b""
        self._reading = set[asyncio.Task[Any]]()
        self._runner: web.AppRunner | None = None
        self._host = ""
        self.address = ""

    async def start(self, *, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            ConfigError: the port is taken, or the host is not this machine's.
        """
        self._host = host
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/static/plotly.js", self._plotly)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_get("/api/runs", self._list)
        run = "/api/runs/{run}"
        app.router.add_get(run, self._answers(facts_of))
        app.router.add_get(f"{run}/curves", self._curves_of)
        app.router.add_get(f"{run}/moment", self._answers(moment_of))
        app.router.add_get(f"{run}/live", self._live)
        app.router.add_get(f"{run}/flow", self._flow)
        app.router.add_get(f"{run}/trajectories", self._trajectories)
        app.router.add_get(f"{run}/trajectories/{{id}}", self._one(trajectory_of))
        app.router.add_get(f"{run}/trajectories/{{id}}/tokens", self._one(tokens_of))
        app.router.add_get(f"{run}/versions", self._versions)
        app.router.add_get(f"{run}/gaps", self._answers(largest_gaps))
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"The page cannot be served on {host}:{port}",
                why=error.strerror or str(error),
                fix="choose another --port or --host",
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.address = f"{name}:{int(self._runner.addresses[0][1])}"

    async def close(self) -> None:
        """End all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a foreign host or a missing token, and say in one sentence what went wrong."""
        if not host_is_expected(request.host, listens_on=self._host):
            return self._refusal(403, f"This server does not answer to the name {request.host}")
        if request.path == "/" and "token" in request.query:
            return self._login(request.query["token"])
        if not token_is_right(self._token, request.headers, request.cookies):
            return self._refusal(
                401, "Open the page once with ?token=..., or send the token as a bearer token"
            )
        try:
            answer = await handler(request)
        except NotFoundError as error:
            return self._refusal(404, str(error))
        except msgspec.ValidationError as error:
            return self._refusal(400, f"The filter cannot be read: {error}")
        except TidegateError as error:
            return self._refusal(503 if error.retryable else 500, str(error))
        except web.HTTPException as error:
            return self._refusal(error.status, f"This server has no {request.method} {request.path}")
        except ConnectionError:
            raise  # the page went away
        except OSError as error:  # a file of the run is closed to this user, say
            return self._refusal(500, f"{error.filename or 'A file'} cannot be read: {error.strerror}")
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _login(self, given: str) -> web.Response:
        """Keep the token in a cookie that no script reads, and take it out of the address.

        Not a strict cookie: after a link from another site, the answer to it is asked for without one.
        """
        if not same_secret(given, self._token):
            return self._refusal(401, "That is not the token of this page")
        answer = web.Response(status=303, headers={**HEADERS, "Location": "/"})
        answer.set_cookie(COOKIE, given, httponly=True, samesite="Lax", path="/")
        return answer

    @staticmethod
    def _refusal(status: int, sentence: str) -> web.Response:
        return _json({"error": sentence}, status=status)

    # -- the page itself -------------------------------------------------------------------------------------------

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html", headers={**HEADERS, "Cache-Control": "no-cache"})

    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = FILES.get(request.match_info["name"])
        if found is None:
            raise NotFoundError("The page has no such file")
        path, kind = found
        body = await asyncio.to_thread(path.read_bytes)
        return web.Response(
            body=body, content_type=kind, charset="utf-8", headers={"Cache-Control": "no-cache"}
        )

    async def _plotly(self, request: web.Request) -> web.StreamResponse:
        """Plotly's own bundle, from its package."""
        headers = {**HEADERS, "Cache-Control": "max-age=86400", "Vary": "Accept-Encoding"}
        with resources.as_file(resources.files("plotly") / "package_data" / "plotly.min.js") as path:
            if "gzip" not in request.headers.get("Accept-Encoding", ""):
                answer = web.FileResponse(path, headers=headers)
                answer.content_type = "text/javascript"
                return answer
            if not self._plotly_gzip:
                self._plotly_gzip = await self._read(lambda: gzip.compress(path.read_bytes(), mtime=0))
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._plotly_gzip, content_type="text/javascript", headers=headers)

    # -- answers ---------------------------------------------------------------------------------------------------

    async def _list(self, _request: web.Request) -> web.StreamResponse:
        return _json(await self._read(self._runs.lines))

    def _answers(self, read: Callable[[Path], object]) -> Handler:
        """A handler that answers what ``read`` returns for the run's folder."""

        async def answer(request: web.Request) -> web.StreamResponse:
            folder = await self._folder(request)
            return _json(await self._read(lambda: read(folder)))

        return answer

    def _one(self, read: Callable[[Path, str], object]) -> Handler:
        """A handler that answers what ``read`` returns for one trajectory of the run."""

        async def answer(request: web.Request) -> web.StreamResponse:
            folder = await self._folder(request)
            return _json(await self._read(lambda: read(folder, request.match_info["id"])))

        return answer

    async def _curves_of(self, request: web.Request) -> web.StreamResponse:
        lock, curves = self._curves.of(await self._folder(request))

        def read() -> dict[str, Any]:
            return {"updates": curves.follow(), "curves": curves.answer(), "meanings": MEANINGS}

        return _json(await self._read(read, lock=lock))

    async def _flow(self, request: web.Request) -> web.StreamResponse:
        """The flow of work, counted again only after the ledger changed: that takes seconds for a million rows."""
        folder = await self._folder(request)
        lock, flow = self._flows.of(folder)
        return _json(await self._read(flow.answer, lock=lock))

    async def _trajectories(self, request: web.Request) -> web.StreamResponse:
        folder = await self._folder(request)
        wanted = msgspec.convert(_filled(request), Filter, strict=False)
        before = msgspec.convert(request.query.get("before"), int | None, strict=False)
        return _json(await self._read(lambda: page_of(folder / STORE_FOLDER, wanted, before_seq=before)))

    async def _versions(self, request: web.Request) -> web.StreamResponse:
        folder = await self._folder(request)
        before = msgspec.convert(request.query.get("before"), int | None, strict=False)
        return _json(await self._read(lambda: updates_of(folder / STORE_FOLDER, before_step=before)))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """The moment of the run once a second, until it ends or the page goes away."""
        folder = await self._folder(request)
        if self._num_streams >= STREAMS_MAX:
            return self._refusal(503, f"{STREAMS_MAX} pages are open already; close one and reload")
        answer = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        self._num_streams += 1
        try:
            await answer.prepare(request)
            while True:
                try:
                    line, moment = await self._read(lambda: (line_of(folder), moment_of(folder)))
                except (TidegateError, OSError):  # deleted, say; the page asks again and is answered why
                    return answer
                body = msgspec.json.encode({"line": line, "moment": moment})
                await answer.write(b"data: " + body + b"\n\n")
                if line.state != "running":
                    return answer
                await asyncio.sleep(LIVE_PERIOD_S)
        except ConnectionResetError:
            return answer
        finally:
            self._num_streams -= 1

    async def _folder(self, request: web.Request) -> Path:
        return await self._read(lambda: self._runs.named(request.match_info["run"]))

    async def _read(self, read: Callable[[], AnswerT], *, lock: asyncio.Lock | None = None) -> AnswerT:
        """What ``read`` returns in a thread; ``lock``: held meanwhile.

        A thread cannot be interrupted: where the page goes away, it keeps its place and the lock until it is done.
        """
        begun = asyncio.Event()

        async def read_whole() -> AnswerT:
            async with lock or nullcontext(), self._readers:
                begun.set()
                return await asyncio.to_thread(read)

        reading = asyncio.create_task(read_whole())
        self._reading.add(reading)
        reading.add_done_callback(self._forget)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not begun.is_set():
                reading.cancel()
            raise

    def _forget(self, reading: asyncio.Task[Any]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()  # seen, also where its page went away


class InMemory(Generic[KeptT]):
    """What is kept of the runs that were read last, each with a lock for its one reader at a time."""

    def __init__(self, make: Callable[[Path], KeptT]) -> None:
        """``make``: opens one run's folder. At most ``RUNS_IN_MEMORY`` stay; the one read least recently goes first."""
        self._make = make
        self._kept: OrderedDict[Path, tuple[asyncio.Lock, KeptT]] = OrderedDict()

    def of(self, folder: Path) -> tuple[asyncio.Lock, KeptT]:
        """The run's lock, and what is kept of it."""
        found = self._kept.pop(folder, None) or (asyncio.Lock(), self._make(folder))
        self._kept[folder] = found
        while len(self._kept) > RUNS_IN_MEMORY:
            self._kept.popitem(last=False)
        return found


def _filled(request: web.Request) -> dict[str, str]:
    """The fields of the filter that the query fills in.

    Raises:
        msgspec.ValidationError: a field that the filter does not have.
    """
    unknown = sorted(set(request.query) - QUERY_FIELDS)
    if unknown:
        raise msgspec.ValidationError(f"it has no field {unknown[0]!r}")
    return {name: value for name, value in request.query.items() if value != "" and name != "before"}


def _json(answer: object, *, status: int = 200) -> web.Response:
    body = msgspec.json.encode(answer)
    response = web.Response(
        body=body,
        status=status,
        content_type="application/json",
        headers={**HEADERS, "Cache-Control": "no-store"},
        zlib_executor_size=PLAIN_BYTES_MAX,
    )
    if len(body) > PLAIN_BYTES_MAX:
        response.enable_compression()
    return response
