"""Questions of recorded programs over a socket, their answers, and where these are kept."""

import os
import socket
import struct
import threading

import pytest

from tileprof.record.cuda.code import proofs
from tileprof.record.cuda.code.instructions import parse
from tileprof.record.cuda.code.proofs import Launch, Proofs, Server
from tileprof.trace import WRITE

ADDRESS = ["S2R R0, SR_TID.X", "LDC.64 R2, c[0x0][0x210]", "IMAD.WIDE R2, R0, 0x4, R2", "STG.E desc[UR4][R2.64], R0"]
POINTERS = ["LDC R0, c[0x0][0x218]", "ISETP.NE.AND P0, PT, R0, RZ, PT", "LDC.64 R2, c[0x0][0x210]",
            "@P0 LDG.E.64 R2, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R0"]  # fmt: skip
PARAMETERS = struct.pack("<QI", 0x7F0012340000, 0)
SOURCES = {b"A" * 16: ADDRESS, b"P" * 16: POINTERS, b"B" * 16: ["UNHEARDOF R0"]}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Return a disassembler that knows three kernels; its file counts how often it is asked."""
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "nvdisasm"
    path.write_text("")

    def disassembled(used, code):
        assert used == path
        with path.with_suffix(".count").open("a") as file:
            file.write("x")
        lines = [*SOURCES.get(code, ["UNHEARDOF R0"]), "EXIT"]
        return parse("\n".join(f"        /*{16 * n:04x}*/  {line} ;" for n, line in enumerate(lines)))

    monkeypatch.setattr(proofs.disassembly, "disassembled", disassembled)
    return path


def times_asked(tool):
    path = tool.with_suffix(".count")
    return len(path.read_text()) if path.exists() else 0


def request(code, parameters=PARAMETERS, pointers=b"\x01", **changes):
    fields = {"magic": b"TPP2", "architecture": 90, "offset": 0x210, "grid": (4, 1, 1), "block": (32, 1, 1),
              "cluster": (1, 1, 1), "relocated": (), "code_bytes": len(code)} | changes  # fmt: skip
    relocated = fields["relocated"]
    return (
        fields["magic"]
        + struct.pack("<4I", fields["architecture"], fields["code_bytes"], len(relocated), fields["offset"])
        + struct.pack("<I", len(parameters))
        + struct.pack("<9I", *fields["grid"], *fields["block"], *fields["cluster"])
        + code
        + struct.pack(f"<{len(relocated)}I", *relocated)
        + parameters
        + pointers
    )  # fmt: skip


def connected(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(server.path)
    return connection


def answers(server, *requests):
    with connected(server) as connection:
        out = []
        for one in requests:
            connection.sendall(one)
            out.append(connection.recv(1))
            if out[-1] == proofs.PROVEN:
                used = connection.recv(1)  # of at most 32 bytes of parameters
                assert used != b"\0"
        return out


def ended(connection):
    """Return whether a connection ends without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_program_is_told_whether_it_needs_no_instruments(tool):
    with Server(tool) as server:
        plain, here, nothing = request(b"A" * 16), request(b"P" * 16), request(b"B" * 16)
        assert answers(server, plain, here, nothing, plain) == [b"\1", b"\1", b"\0", b"\1"]
        array = request(b"P" * 16, struct.pack("<QI", 0x7F0012340000, 1))
        assert answers(server, array, here) == [b"\0", b"\1"]


def test_programs_ask_at_once(tool):
    with Server(tool) as server:
        out = []
        threads = [
            threading.Thread(target=lambda: out.append(answers(server, request(b"A" * 16), request(b"P" * 16))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert out == [[b"\1", b"\1"]] * 8


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"TPP2",
        request(b"A" * 16, magic=b"NOPE"),
        request(b"A" * 16)[:-1],
        request(b"A" * 16, code_bytes=0xFFFFFFFF),
    ],
    ids=["nothing", "half a header", "another protocol", "half a request", "too long"],
)
def test_what_is_no_request_ends_its_connection_alone(tool, bad):
    with Server(tool) as server:
        with connected(server) as connection:
            connection.sendall(bad)
            connection.shutdown(socket.SHUT_WR)
            assert ended(connection)
        assert answers(server, request(b"A" * 16)) == [b"\1"]


@pytest.mark.parametrize(
    "hopeless",
    [
        request(b"A" * 16, architecture=80),
        request(b""),
        request(b"A" * (proofs.MOST_CODE + 16)),
        request(b"A" * 16, bytes(proofs.MOST_PARAMETERS + 8), bytes(proofs.MOST_PARAMETERS // 64 + 1)),
        request(b"A" * 16, relocated=(0x18,)),
        request(b"A" * 16, b"", b""),
    ],
    ids=["architecture", "no code", "much code", "many parameters", "relocated", "no parameters"],
)
def test_what_cannot_be_looked_at_is_not_proven(tool, hopeless):
    with Server(tool) as server:
        assert answers(server, hopeless, request(b"A" * 16)) == [b"\0", b"\1"]


def test_a_fault_of_the_analysis_is_not_a_proof(tool, monkeypatch):
    def fails(*_):
        raise ValueError("a fault")

    monkeypatch.setattr(proofs.traced, "trace", fails)
    launch = Launch(b"A" * 16, (), 0x210, PARAMETERS, b"\x01", (1, 1, 1), (1, 1, 1))
    kept = Proofs(tool)
    assert kept.touched(launch) is None
    assert "a fault" in kept.reason
    monkeypatch.setattr(Server, "of", fails)
    with Server(tool) as server:
        assert answers(server, request(b"A" * 16)) == [b"\0"]


def test_a_server_ends_at_once_although_programs_are_connected(tool):
    with Server(tool) as server:
        path, connection = server.path, connected(server)
        connection.sendall(b"TPP2")
    assert ended(connection)
    connection.close()
    assert not os.path.exists(path)  # noqa: PTH110
    assert server.path is None


def test_the_socket_is_for_its_user_alone_and_its_path_is_short(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(proofs.tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    (tmp_path / ("long" * 30)).mkdir()
    with Server(tool) as server:
        assert len(server.path) <= proofs.MOST_PATH
        assert os.stat(os.path.dirname(server.path)).st_mode & 0o777 == 0o700  # noqa: PTH116, PTH120
    assert not list((tmp_path / ("long" * 30)).iterdir())


def test_without_a_disassembler_nothing_is_proven(monkeypatch):
    monkeypatch.setattr(proofs.locate, "nvdisasm", lambda: None)
    with Server() as server:
        assert answers(server, request(b"A" * 16)) == [b"\0"]


def test_decoding_gets_what_is_touched_and_why_that_is_unknown(tool):
    kept = Proofs(tool)
    place = 0x7F0012340000

    def launch(name, *words, grid=(2, 1, 1)):
        return Launch(name * 16, (), 0x210, struct.pack("<QI", *words), b"\x01", grid, (32, 1, 1))

    runs = kept.touched(launch(b"A", place, 0)).runs[WRITE]
    assert [runs.tile.tolist(), runs.start.tolist(), runs.end.tolist()] == [[0, 1], [place] * 2, [place + 128] * 2]
    runs = kept.touched(launch(b"P", place + 64, 0, grid=(1, 1, 1))).runs[WRITE]
    assert [runs.start.tolist(), runs.end.tolist()] == [[place + 64], [place + 68]]
    assert kept.reason == ""
    assert kept.touched(launch(b"P", place, 1)) is None
    assert "STG.E at 0x40" in kept.reason
    assert kept.touched(launch(b"P", place + 16, 0, grid=(1, 1, 1))).runs[WRITE].start.tolist() == [place + 16]
    assert times_asked(tool) == 2


def test_a_kernel_that_is_never_proven_is_not_looked_at_for_ever(tool, monkeypatch):
    attempts = []
    monkeypatch.setattr(proofs.traced, "trace", lambda *_: attempts.append(0) or "no")
    server = Server(tool)
    launches = [
        Launch(b"B" * 16, (), 0x210, struct.pack("<Q", n), b"\0", (1, 1, 1), (1, 1, 1))
        for n in range(3 * proofs.MOST_FAILURES)
    ]
    assert {server.of(launch) for launch in launches} == {b"\0"}
    assert len(attempts) == proofs.MOST_FAILURES
    assert server.proofs.touched(launches[-1]) is None
    assert len(attempts) == proofs.MOST_FAILURES + 1, "but decoding looks at all"


def test_proofs_are_not_looked_for_without_end(tool, monkeypatch):
    launch = Launch(b"A" * 16, (), 0x210, PARAMETERS, b"\x01", (1, 1, 1), (1, 1, 1))
    monkeypatch.setattr(proofs, "MOST_SECONDS", -1.0)
    assert Server(tool).of(launch) == b"\0"


def test_words_that_decide_nothing_may_differ(tool, monkeypatch):
    """Kernels have parameters with unused entries, in which launches leave whatever was in memory."""
    attempts, trace = [], proofs.traced.trace
    monkeypatch.setattr(proofs.traced, "trace", lambda *of: attempts.append(0) or trace(*of))
    server, place = Server(tool), 0x7F0012340000

    def launch(name, unused, used=0, pointers=b"\x01"):
        words = struct.pack("<QIIQ", place, used, 5, unused)
        return Launch(name * 16, (), 0x210, words, pointers, (1, 1, 1), (1, 1, 1))

    assert server.of(launch(b"P", 1)) == b"\1" + bytes([0b00111]), "a pointer and the word that decides"
    assert server.of(launch(b"P", 2)) == server.of(launch(b"P", place, pointers=b"\x05")) == b"\1\7"
    assert len(attempts) == 1
    assert server.of(launch(b"P", 1, used=1)) == b"\0"
    assert len(attempts) == 2
    assert server.proofs.touched(launch(b"P", 7)).runs[WRITE].start.tolist() == [place]
    assert len(attempts) == 2


def test_decoding_uses_what_the_server_has_found(tool):
    with Server(tool) as server:
        answers(server, request(b"P" * 16))
    count = times_asked(tool)
    launch = Launch(b"P" * 16, (), 0x210, PARAMETERS, b"\x01", (4, 1, 1), (32, 1, 1))
    assert server.proofs.touched(launch) is not None
    assert times_asked(tool) == count


def test_words_of_the_constant_bank():
    parameters = struct.pack("<QQI", 0x7F0012340000, 0x1_0000_0002, 3)
    launch = Launch(b"", (), 0x210, parameters, b"\x01", (7, 8, 9), (4, 5, 6))
    bank = launch.traced.bank
    assert struct.unpack("<6I", bank[:24]) == (4, 5, 6, 7, 8, 9)
    assert bank[0x210:] == parameters
    assert launch.traced.pointers == {0x210}


def test_launches_that_differ_in_pointers_alone_share_a_proof():
    def key(*words, **changes):
        fields = {"grid": (7, 8, 9), "block": (4, 5, 6), "cluster": (1, 1, 1)} | changes
        launch = Launch(b"", (), 0x210, struct.pack("<QQ", *words), b"\x01", **fields)
        return launch.kind, launch.words.tobytes()

    first = key(0x7F0012340000, 2)
    assert key(0x7F0056780000, 2) == first
    others = [key(0x7F0012340000, 3), key(0x1000, 2), key(0x7F0012340000, 2, cluster=(7, 1, 1)),
              key(0x7F0012340000, 2, grid=(8, 7, 9))]  # fmt: skip
    assert len({first, *others}) == 5
