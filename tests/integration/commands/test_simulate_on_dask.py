"""Sweeps and several traces on a Dask cluster: a local one, a running one, none, and workers that die."""

import builtins
import json
import os
import socket
import time
from threading import Thread

import pytest

from tests.support.simulate_command import simulate
from tests.support.synthetic_graphs import write_mlp
from tileprof.analysis.simulate import Source, Sweep, fleet
from tileprof.analysis.simulate.sweeps import dask_cluster
from tileprof.errors import UserError

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Dask's own warning


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    return [str(write_mlp(folder / f"{n}.tileprof", layers=n, tokens=256, hidden=256)) for n in (1, 2)]


@pytest.fixture(scope="module")
def address():
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0
    ) as here:
        yield here.scheduler_address


def test_a_cluster_gives_what_one_process_gives(traces, address):
    sources = [Source(trace) for trace in traces]
    sweep = Sweep("gap_ns", (0.0, 500.0))
    alone = [fleet([source], ["stream", "graph"], sweep)[0] for source in sources]
    assert fleet(sources, ["stream", "graph"], sweep, address) == alone
    assert fleet(sources, ["stream", "graph"], sweep) == alone


def test_the_command_shares_several_traces_among_workers(traces, address, capsys, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # without Dask: in this process
    assert simulate(*traces, "--scheduler", "stream", "--dask", address, "--json") == 0
    on_dask = [one["schedules"] for one in json.loads(capsys.readouterr().out)]
    simulate(*traces, "--scheduler", "stream", "--json")
    assert [one["schedules"] for one in json.loads(capsys.readouterr().out)] == on_dask
    simulate(*traces, "--scheduler", "stream")
    assert "2.tileprof" in capsys.readouterr().out


def test_a_users_error_on_a_worker_is_the_users_error_here(address, tmp_path):
    with pytest.raises(UserError, match=r"gone\.tileprof"):
        fleet([Source(str(tmp_path / "gone.tileprof"))], ["stream"], None, address)


def test_a_missing_cluster_is_reported_within_bounded_time(monkeypatch):
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "nowhere://at.all"):
        with pytest.raises(UserError, match="no Dask scheduler answers at"):
            dask_cluster.on_dask(address, abs, [1])


def test_a_port_that_answers_nothing_or_nonsense_is_reported_within_bounded_time(monkeypatch):
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 1.0)
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10):
        with socket.create_server(("127.0.0.1", 0)) as server:
            records = []
            Thread(target=_answer, args=(server, answer, records), daemon=True).start()
            begin = time.monotonic()
            with pytest.raises(UserError, match="no Dask scheduler answers at"):
                dask_cluster.on_dask(f"tcp://127.0.0.1:{server.getsockname()[1]}", abs, [1])
            assert time.monotonic() - begin < 100
        for connection in records:
            connection.close()


def _answer(server, answer, records):
    try:
        while True:
            records.append(server.accept()[0])
            records[-1].sendall(answer)
    except OSError:
        pass  # closed, since the test is over


def test_a_cluster_without_workers_is_reported(monkeypatch):
    monkeypatch.setattr(dask_cluster, "WORKERS_S", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as empty,
        pytest.raises(UserError, match="has had no worker"),
    ):
        dask_cluster.on_dask(empty.scheduler_address, abs, [1])


def test_without_dask_the_command_names_what_to_install(monkeypatch):
    plain = builtins.__import__

    def without(name, *arguments, **keywords):
        if name == "distributed":
            raise ImportError(name)
        return plain(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install distributed"):
        dask_cluster.on_dask(dask_cluster.LOCAL, abs, [1])


def test_a_worker_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with pytest.raises(UserError, match="died while they simulated"):
        dask_cluster.on_dask(dask_cluster.LOCAL, os._exit, [1])
