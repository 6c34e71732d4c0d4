"""The page over HTTP, on this machine only: what is too large for a file, and schedulers run when asked for.

Only a browser here that was given the address gets an answer: the server listens on the loopback interface, the path
begins with a secret, and requests whose Host names anything else than the loopback are refused, because a name of a
foreign site may be made to point here (DNS rebinding). At most `MOST_REQUESTS` requests are answered at the same time.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tileprof.analysis.lanes import LaneSource
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.errors import UserError
from tileprof.viz.comparisons import plain, size
from tileprof.viz.page import page
from tileprof.viz.tables.boxes import boxes_of
from tileprof.viz.tables.lanes import grid_of, whole_lanes
from tileprof.viz.tables.relations import whole
from tileprof.viz.tables.schedules import schedule_value
from tileprof.viz.variants import variant_value

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.guidance import Guidance
    from tileprof.analysis.reporting.report import Report
    from tileprof.viz.comparisons import Study
    from tileprof.viz.tables.policy_overlay import Overlay
    from tileprof.viz.variants import Variant

LOOPBACK = "127.0.0.1"
_LONGEST_QUERY = 2_000
MOST_SMS, MOST_BLOCKS = 4_096, 64
MOST_REQUESTS = 16
"""The most requests at the same time; more are refused with 503. A page asks for a few things at once."""
_SLOWEST_S = 30.0
"""A connection that sends nothing for so long is closed."""


class Answers:
    """The requests that a served page may make of one graph; every answer is a JSON value. Raises `UserError` for what
    it cannot answer.
    """

    def __init__(
        self,
        graph: TileGraph,
        report: Report | None = None,
        study: Study | None = None,
        policy: Overlay | None = None,
        variants: tuple[Variant, ...] = (),
        guidance: Guidance | None = None,
    ) -> None:
        self._graph = graph
        self._study = study
        self._lock = Lock()  # one simulation at a time: each takes a core and memory for every tile
        self._page = (graph, report, study, policy, variants)
        self._guidance = guidance

    @cached_property
    def html(self) -> str:
        return page(*self._page, guidance=self._guidance, served=True)

    def block(self, number: str) -> dict[str, Any]:
        """Return a relation of the graph with every edge."""
        if not (number.isdecimal() and int(number) < len(self._graph.blocks)):
            raise UserError(f"there is no relation {number[:20]!r}")
        return whole(self._graph.blocks[int(number)])

    def lanes(self, launch: str) -> dict[str, Any]:
        """Return every tile of a launch: its SM, slot, begin and life."""
        return whole_lanes(self._lanes, self._launch(launch))

    def grid(self, launch: str) -> dict[str, Any]:
        """Return coordinates and bytes of every tile of a launch."""
        return grid_of(self._graph.recording, self._launch(launch))

    def boxes(self, launch: str) -> dict[str, Any]:
        """Return the boxes of bytes that every tile of a launch touches."""
        return boxes_of(self._graph.recording, self._launch(launch))

    def _launch(self, number: str) -> int:
        if not (number.isdecimal() and int(number) < len(self._graph.launches)):
            raise UserError(f"there is no launch {number[:20]!r}")
        return int(number)

    @cached_property
    def _lanes(self) -> LaneSource:
        return LaneSource(self._graph.recording, self._graph.launches)

    def simulate(self, text: str) -> dict[str, Any]:
        """Return a schedule of ``name:key=value,…``, as those in the page."""
        requested = scheduler(text)
        with self._lock:
            schedule = self._simulator.run(requested, text)
        return schedule_value(self._graph, schedule, self._study)

    def size(self, text: str) -> dict[str, Any]:
        """Return the program on ``SMs,blocks per SM`` (0: as recorded)."""
        sms, blocks = _size_of(text)
        with self._lock:
            return plain(size(self._graph, sms, blocks))

    def variant(self, text: str) -> dict[str, Any]:
        """Return the time of ``name:key=value,…@SMs,blocks``: a scheduler with options on one size of GPU."""
        name, _, at = text.rpartition("@")
        sms, blocks = _size_of(at)
        with self._lock:
            return variant_value(self._graph, name, sms, blocks)

    @cached_property
    def _simulator(self) -> Simulator:
        return Simulator(self._graph)


def _size_of(text: str) -> tuple[int, int]:
    """Return SMs and resident blocks per SM of ``SMs,blocks``."""
    words = text.split(",")
    if len(words) != 2 or not all(word.isdecimal() and len(word) < 6 for word in words):
        raise UserError(f"{text[:40]!r} is not a size; give SMs,blocks: 66,2")
    sms, blocks = (int(word) for word in words)
    if not (1 <= sms <= MOST_SMS and blocks <= MOST_BLOCKS):
        raise UserError(f"sizes are 1 to {MOST_SMS} SMs of at most {MOST_BLOCKS} blocks")
    return sms, blocks


class PageServer(ThreadingHTTPServer):
    """Serves `Answers` at `url` until shut down."""

    daemon_threads = True

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers = answers
        self.secret = secrets.token_urlsafe(12)
        self._free = BoundedSemaphore(MOST_REQUESTS)
        super().__init__((LOOPBACK, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a request in a thread of its own while fewer than `MOST_REQUESTS` are served; else refuse it."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes its tab is not an error; anything else is a bug, and its traceback is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "tileprof"
    sys_version = ""
    timeout = _SLOWEST_S

    def do_GET(self) -> None:
        hosts = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host", "") not in hosts:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", "This server answers to the loopback address only.")
        address = urlsplit(self.path)
        prefix = f"/{self.server.secret}/"
        path = address.path[: len(prefix)].encode("utf-8", "replace")
        if not secrets.compare_digest(path, prefix.encode()) or len(address.query) > _LONGEST_QUERY:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "Not here.")
        name = address.path.removeprefix(prefix)
        if not name:
            return self._send(HTTPStatus.OK, "text/html", self.server.answers.html)
        answers = self.server.answers
        answer = {
            "block": answers.block,
            "lanes": answers.lanes,
            "grid": answers.grid,
            "boxes": answers.boxes,
            "simulate": answers.simulate,
            "size": answers.size,
            "variant": answers.variant,
        }.get(name)
        if answer is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "Not here.")
        return self._answer(answer, parse_qs(address.query).get("of", [""])[0])

    def _answer(self, question: Callable[[str], dict[str, Any]], of: str) -> None:
        try:
            value = question(of)
        except UserError as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", str(error))
        except (OverflowError, MemoryError):  # numbers that no option forbids and no machine word holds
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"{of[:80]!r} holds a number that cannot be worked with")
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(value, allow_nan=False))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Quiet: the terminal belongs to the user."""
