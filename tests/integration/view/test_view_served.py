"""`tileprof view --serve`: it answers this machine only, and only readers who have the address, with data that a file
has no room for.
"""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.support.packed_values import unpacked
from tests.support.small_programs import transformer
from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Machine
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.trace import load
from tileprof.viz import document as documents
from tileprof.viz import study
from tileprof.viz.serve import MOST_REQUESTS, Answers, PageServer
from tileprof.viz.tables import lanes, relations

GEMM, ATTENTION = 2, 3


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return transformer(tmp_path_factory.mktemp("served") / "t", layers=2)


@pytest.fixture(scope="module")
def graph(trace):
    return build_graph(load(trace))


@pytest.fixture(scope="module")
def server(graph):
    server = PageServer(Answers(graph, build_report(graph), study(graph)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def page_file():
    """Write nothing, because the page is served."""


def get(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_a_foreign_host_name_that_resolves_to_this_machine_gets_no_answer(server):
    path = f"/{server.secret}/"
    assert get(server, path)[0] == 200
    assert get(server, path, f"localhost:{server.server_port}")[0] == 200
    for host in ("evil.example", f"evil.example:{server.server_port}", f"127.0.0.1.evil.example:{server.server_port}"):
        status, body = get(server, path, host)
        assert status == 403
        assert "tileprof" not in body


@pytest.mark.parametrize("path", ["/", "/block?of=0", "/wrong/", "/../etc/passwd"])
def test_requests_without_the_secret_get_no_answer(server, path):
    assert get(server, path) == (404, "Not here.")


def test_more_requests_at_once_than_are_stated_are_refused(server):
    connections = [socket.create_connection(("127.0.0.1", server.server_port), 120) for _ in range(MOST_REQUESTS)]
    try:
        deadline = time.monotonic() + 120
        while server._free._value and time.monotonic() < deadline:
            time.sleep(0.01)
        assert get(server, f"/{server.secret}/")[0] == 503
    finally:
        for connection in connections:
            connection.close()
    deadline = time.monotonic() + 120
    while server._free._value < MOST_REQUESTS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert get(server, f"/{server.secret}/")[0] == 200


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/", "block/../../x", "//evil.example/"]
)
def test_no_path_leads_to_a_file(server, path):
    assert get(server, f"/{server.secret}/{path}") == (404, "Not here.")


def test_it_listens_on_the_loopback_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_relation_comes_whole(server, graph):
    status, body = get(server, f"/{server.secret}/block?of=1")
    assert status == 200
    value, block = json.loads(body), graph.blocks[1]
    np.testing.assert_array_equal(unpacked(value["parent"]), block.parent)
    np.testing.assert_array_equal(unpacked(value["set_of"]), block.set_of)


def test_a_scheduler_with_options_is_simulated(server):
    status, body = get(server, f"/{server.secret}/simulate?of=graph:gap_ns=0")
    assert status == 200
    assert json.loads(body)["time_ns"] > 0


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("simulate?of=strem", "did you mean stream"),
        ("block?of=-1", "no relation"),
        ("block?of=99999", "no relation"),
        ("size?of=0,1", "1 to"),
        ("size?of=7", "not a size"),
        ("variant?of=acs-sw:window=99999999999999999999@132,0", ""),
        ("simulate?of=acs-sw:window=99999999999999999999", ""),
    ],
)
def test_a_request_that_cannot_be_answered_gets_an_error(server, path, says):
    status, body = get(server, f"/{server.secret}/{path}")
    assert status == 400
    assert says in body
    assert "Traceback" not in body


@pytest.fixture
def small_budget(graph, monkeypatch):
    """Serve a page that had no room for relations, lanes or coordinates, until the test ends."""
    monkeypatch.setattr(relations, "_TOO_MANY", 100)
    monkeypatch.setattr(lanes, "_TOO_MANY", 10)
    monkeypatch.setattr(lanes, "_grids", lambda *_: ([], [-1] * len(graph.launches)))
    server = PageServer(Answers(graph, build_report(graph), study(graph)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_page_shows_single_tiles_of_a_pair_that_a_file_aggregates(graph, small_budget, tab):
    document = documents.document(graph)
    assert any("counts" in b for b in document["blocks"])
    assert any("share" in table for table in document["lanes"])
    view = tab(f"#pair={GEMM},{ATTENTION}", path=small_budget.url, allowed=small_budget.url)
    view.until("() => tileprof.matrix.parts.length > 0")
    assert view.ask("() => tileprof.matrix.parts.every((p) => p.block.parent)")
    view.until("(i) => tileprof.laneTables.ready(tileprof.laneOf[i])?.sm", ATTENTION)
    lives = view.ask("(i) => Array.from(tileprof.laneTables.ready(tileprof.laneOf[i]).life)", ATTENTION)
    footprint = graph.footprint(int(graph.launches["footprint"][ATTENTION]))
    assert lives == pytest.approx((footprint.duration_ns * 10).tolist())
    where = "(cell) => cell.map((v) => v + 0.5)"
    x, y, _ = footprint.block[20].tolist()
    assert f"consumer tile 20 ({x}, {y}, 0)" in view.tip("matrix", where, [20, 3])


def test_a_scheduler_with_options_is_run_and_found_again_after_a_reload(small_budget, tab):
    view = tab("#view=gain", path=small_budget.url, allowed=small_budget.url)
    view.page.fill("#wanted", "stream:gap_ns=1")
    view.page.click("button:has-text('Simulate')")
    view.page.wait_for_selector("#schedulers button:has-text('stream:gap_ns=1')")
    view.page.select_option("#beside", "stream:gap_ns=1")
    view.until("() => tileprof.simulated()?.top")
    view.page.reload()
    view.page.wait_for_selector("#schedulers button:has-text('stream:gap_ns=1')")
    assert view.ask("() => tileprof.state.beside") == "stream:gap_ns=1"


def test_sliders_of_a_served_page_reach_any_combination(graph, small_budget, tab):
    view = tab("#view=sizes&if=cusync@132,0", path=small_budget.url, allowed=small_budget.url)
    for slider, key in (("sms", "Home"), ("occupancy", "ArrowRight"), ("poll_ns", "End"), ("window", "End")):
        view.page.focus(f"#slide-{slider}")
        view.page.keyboard.press(key)
    assert view.hash() == "#view=sizes&if=cusync:poll_ns=2800,window=8@1,1"
    time_ns = Simulator(graph, Machine(graph.device, 1, 1)).run(scheduler("cusync:poll_ns=2800,window=8")).time_ns
    view.until("(ns) => Math.abs((tileprof.ran.get('cusync:poll_ns=2800,window=8@1,1') ?? 0) / ns - 1) < 1e-6", time_ns)
    view.page.click("#as-recorded")
    view.page.click("#what-if button:has-text('Show in the timeline')")
    view.until("() => tileprof.state.beside === 'cusync' && tileprof.simulated()?.top")


def test_the_command_says_its_address_and_ends_with_ctrl_c(trace, tmp_path):
    command = [sys.executable, "-m", "tileprof.cli", "view", str(trace), "--serve", "--quick"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        address = running.stderr.readline()
        assert re.match(r"http://127\.0\.0\.1:\d+/\S+/ ", address)
        running.send_signal(signal.SIGINT)
        assert running.wait(200) == 0
    assert not list(tmp_path.iterdir())


def test_a_served_page_is_not_written_too(trace, tmp_path, warm):
    command = [warm.path / "tileprof", "view", trace, "--serve", "-o", tmp_path / "page.html"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "--serve writes no file" in result.stderr
