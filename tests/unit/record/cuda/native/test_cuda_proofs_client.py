"""Programs ask which launches need no patches: the native side, beside the server and beside broken ones."""

import random
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.record.cuda.code.cubins import compiled, section
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.record.cuda.code import proofs
from tileprof.record.cuda.code.proofs import Launch, Server
from tileprof.record.cuda.installation import locate, recorder_build

pytestmark = pytest.mark.skipif(
    None in {path_or_none(locate.host_compiler), path_or_none(locate.nvcc) and path_or_none(locate.cuda_include)},
    reason="needs cuda.h and a C++ compiler",
)
PATIENCE_MS = 60_000
COMPLAINT = "nobody answered which kernels need no patches; all are patched from here on"
CODE = """
extern "C" __global__ void scale(float* out, const float* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}
extern "C" __global__ void gather(float* out, const int* index, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[index[i]] = 1;
}
"""
OUT, IN = 0x7F0012340000, 0x7F0056780000


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    place = tmp_path_factory.mktemp("client") / "client"
    units = [Path(__file__).with_name("proofs_client.cpp"), recorder_build.SOURCES / "code" / "proofs.cpp"]
    folders = [f"-I{recorder_build.SOURCES}", f"-I{locate.cuda_include()}"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-pthread"]
    subprocess.run([locate.host_compiler(), *flags, *folders, *units, "-o", place], check=True)
    return place


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("kernels"), "k", CODE, "-arch=sm_90").read_bytes()


def every_word(launch):
    """Return the answer that a launch is proven, and that this depends on all of its parameters."""
    return proofs.PROVEN + b"\xff" * -(launch.size // -4 // 8)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return the launches of which a server of this test was asked."""
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path / "cache"))
    launches, answer = [], Server.of
    monkeypatch.setattr(Server, "of", lambda self, launch: launches.append(launch) or answer(self, launch))
    return launches


@pytest.fixture
def ask(program):
    """Let a program ask of launches: its answers, and what it complained of."""

    def run(path, *launches, patience_ms=PATIENCE_MS, threads=1, signal_ms=0, launching=0):
        questions = "".join(line(kernel, launch, launching) + "\n" for kernel, launch in launches)
        command = [program, path, *map(str, (patience_ms, threads, signal_ms))]
        out = subprocess.run(command, input=questions, capture_output=True, text=True, check=True, timeout=300).stdout
        lines = out.splitlines()
        return [word == "1" for word in lines if word in {"0", "1"}], [w for w in lines if w not in {"0", "1"}]

    return run


def line(kernel, launch, launching=0):
    """Return a question of `proofs_client.cpp`."""
    words = [(pointer - launch.offset) // 8 for pointer in launch.pointing]
    sizes, relocated = [*launch.grid, *launch.block, *launch.cluster], launch.relocated
    lists = [",".join(map(str, numbers)) or "-" for numbers in (relocated, sizes, words)]
    texts = launch.code.hex() or "-", launch.parameters.hex() or "-"
    return " ".join([str(kernel), str(launching), texts[0], str(launch.offset), *lists[:2], texts[1], lists[2]])


def of(image, name, out=OUT, source=IN, n=1000, **fields):
    sizes = {"grid": (8, 1, 1), "block": (128, 1, 1)} | fields
    return Launch(section(image, f".text.{name}"), (), 0x210, struct.pack("<QQi", out, source, n), b"\x03", **sizes)


@pytest.fixture
def tool():
    path = locate.nvdisasm()
    if path is None:
        pytest.skip("no nvdisasm")
    return path


def test_a_server_is_asked_once_for_launches_that_differ_in_addresses(tool, image, ask, asked):
    one, elsewhere, larger = of(image, "scale"), of(image, "scale", OUT + 512, IN + 4096), of(image, "scale", n=900)
    with Server(tool) as server:
        launches = [(3, one), (3, one), (3, elsewhere), (3, larger), (3, elsewhere), (3, larger), (3, one)]
        assert ask(server.path, *launches) == ([True] * 7, [])
    assert asked == [one, larger]


def test_addresses_that_memory_holds_are_not_proven(tool, image, ask, asked):
    scale, gather = of(image, "scale"), of(image, "gather")
    with Server(tool) as server:
        assert ask(server.path, (0, gather), (1, scale), (0, gather)) == ([False, True, False], [])
    assert asked == [gather, scale, gather]


def test_the_server_gets_a_launch_as_it_is(image, ask, asked, monkeypatch):
    monkeypatch.setattr(Server, "of", lambda _, launch: asked.append(launch) or every_word(launch))
    rng, launches = random.Random(3), []
    for n in range(40):
        size = rng.choice([0, 1, 4, 8, 12, 64, 72, 520, 1000])
        parameters = rng.randbytes(size)
        words = [w for w in range(size // 8) if rng.random() < 0.5]
        mask = sum(1 << w for w in words).to_bytes((-(-size // 8) + 7) // 8, "little")
        relocated = tuple(rng.randrange(0, 1 << 32, 16) for _ in range(rng.randrange(3)))
        sizes = [tuple(rng.randrange(1, 1 << 16) for _ in range(3)) for _ in range(3)]
        code = rng.randbytes(16 * rng.randrange(1, 9))
        launches.append((n, Launch(code, relocated, rng.randrange(0x1000), parameters, mask, *sizes)))
    with Server(Path("nvdisasm")) as server:
        assert ask(server.path, *launches) == ([True] * 40, [])
    assert asked == [launch for _, launch in launches]


def of_one_proof(launch):
    return launch.kind, launch.words.tobytes()


def test_no_launch_is_taken_for_one_of_which_the_server_judges_apart(image, ask, asked, monkeypatch):
    """A proof holds for a kind and for words. The program may ask more often, but not less."""
    monkeypatch.setattr(Server, "of", lambda _, launch: asked.append(launch) or every_word(launch))
    rng, launches = random.Random(4), []
    for _ in range(300):
        out = rng.choice([OUT, IN]) + rng.choice([0, 4, 16, 0x80, 0x100, 0x200]) >> rng.choice([0, 0, 0, 8])
        source = rng.choice([IN, 1 << 40])  # the latter looks like the former, as far as a pointer decides
        launch = of(image, rng.choice(["scale", "gather"]), out, source, n=rng.choice([1, 2]))
        pointers, grid = rng.choice([b"\1", b"\3"]), rng.choice([(1, 2, 1), (2, 1, 1)])
        cluster = rng.choice([(1, 1, 1), (1, 1, 1), grid])
        launches.append(replace(launch, pointers=pointers, grid=grid, cluster=cluster))
    with Server(Path("nvdisasm")) as server:
        numbers = [int(launch.code == launches[0].code) for launch in launches]
        answers, complaints = ask(server.path, *zip(numbers, launches, strict=True))
    assert all(answers)
    assert complaints == []
    assert {of_one_proof(launch) for launch in asked} == {of_one_proof(launch) for launch in launches}
    assert len(asked) < len(launches)


def test_threads_ask_one_after_the_other(tool, image, ask, asked):
    launches = [(n % 2, of(image, ["scale", "gather"][n % 2], n=n + 1)) for n in range(8)]
    with Server(tool) as server:
        answers, complaints = ask(server.path, *launches, threads=6)
    assert sorted(answers) == [False] * 24 + [True] * 24
    assert complaints == []
    assert len(asked) >= 8


@pytest.mark.parametrize("case", ["no code", "much code", "launches"])
def test_what_no_server_would_prove_is_not_asked(image, ask, asked, case):
    launch = of(image, "scale")
    code = {"no code": b"", "much code": bytes(proofs.MOST_CODE + 16)}.get(case, launch.code)
    with Server(Path("nvdisasm")) as server:
        words = (0, replace(launch, code=code))
        assert ask(server.path, words, launching=int(case == "launches")) == ([False], [])
    assert asked == []


@contextmanager
def answering(tmp_path, reply):
    """Serve a socket: ``reply`` gets a connection, and what it does not return is closed at the end."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(8)
        connections = []

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connections.append(connection)
                reply(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path, connections
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    "reply",
    [
        lambda c: None,
        lambda c: c.shutdown(socket.SHUT_RDWR),
        lambda c: (c.recv(60), c.shutdown(socket.SHUT_RDWR)),
        lambda c: (c.recv(1 << 20), c.shutdown(socket.SHUT_RDWR)),
    ],
    ids=["never answers", "ends at once", "ends in the header", "ends before it answers"],
)
def test_a_server_that_is_silent_is_asked_no_more(tmp_path, image, ask, reply):
    code = bytes(proofs.MOST_CODE)  # more than a socket holds that nobody reads
    large = replace(of(image, "scale"), code=code)
    with answering(tmp_path, reply) as (path, connections):
        for launch in (of(image, "scale"), large):
            answers, complaints = ask(path, (0, launch), (0, launch), (1, launch), patience_ms=400)
            assert answers == [False] * 3
            assert complaints == [COMPLAINT]
        assert len(connections) == 2


def test_threads_behind_a_silent_server_complain_once(tmp_path, image, ask):
    with answering(tmp_path, lambda _: None) as (path, connections):
        answers, complaints = ask(path, *[(n, of(image, "scale")) for n in range(3)], patience_ms=400, threads=4)
    assert (answers, complaints, len(connections)) == ([False] * 12, [COMPLAINT], 1)


@pytest.mark.parametrize("answer", [b"\0", b"\3", b"\xff"])
def test_any_other_answer_is_no(tmp_path, image, ask, answer):
    def reply(connection):
        for _ in range(2):
            connection.recv(1 << 20)
            connection.sendall(answer)

    with answering(tmp_path, reply) as (path, _):
        assert ask(path, *[(0, of(image, "scale"))] * 2) == ([False] * 2, [])


def test_signals_of_the_program_do_not_end_a_question(tmp_path, image, ask):
    turn = threading.Event()

    def reply(connection):
        turn.wait(0.2)
        connection.recv(1 << 20)
        turn.wait(0.2)
        for byte in every_word(of(image, "scale")):
            connection.sendall(bytes([byte]))
            turn.wait(0.02)

    with answering(tmp_path, reply) as (path, _):
        assert ask(path, (0, of(image, "scale")), signal_ms=5) == ([True], [])
    (tmp_path / "s").unlink(missing_ok=True)
    with answering(tmp_path, lambda _: None) as (path, _):
        assert ask(path, (0, of(image, "scale")), signal_ms=5, patience_ms=300) == ([False], [COMPLAINT])


@pytest.mark.parametrize("path", ["gone", "gone" * 40], ids=["gone", "too long"])
def test_without_a_server_all_is_patched(tmp_path, image, ask, path):
    launches = [(n, of(image, "scale")) for n in range(3)]
    assert ask(tmp_path / path, *launches) == ([False] * 3, [COMPLAINT])
