"""Headers for cuSync compile, and wait for what the policy says."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policies.graphs import graph_of
from tileprof.errors import UserError
from tileprof.policy.emit import cusync_parts
from tileprof.policy.emit.cusync import cusync_files
from tileprof.policy.emit.express import express
from tileprof.policy.emit.names import identifiers
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.dependency_file import parse_dependencies
from tileprof.policy.verification.relation_graph import graph_of_waits
from tileprof.policy.verification.residency import blocked_producers
from tileprof.policy.verification.verifier import verify
from tileprof.runtime.include_path import INCLUDE

ARCHITECTURES = ("80", "90")

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on the PATH: what a header compiles to is not tested")

TEXTS = {
    "rows": "grid up 6 x 4\ngrid down 5 x 4\ndep down on up(0..5, y)",
    "halo": "grid up 9 x 2\ngrid down 9 x 2\ndep down on up(max(0, x - 1)..min(8, x + 1), 0..1)",
    "strided": "grid qkv 12 x 3\ngrid s 4 x 3 x 2\ndep s on qkv(x..x + 8 step 4, y)",
    "table": "grid up 7\ngrid down 9\ndep down on up((5*x) % 7)\ndep down on up((3*x + 2) % 7)",
    "some wait": "grid up 8\ngrid down 8\ndep down on up(max(0, 2*x)..min(7, 7 - x))",
    "join": "grid a 4 x 2\ngrid b 4 x 2\ngrid c 4 x 2\ngrid d 3\n"
    "dep b on a(3 - x, y)\ndep c on a(x, y)\ndep c on b(x // 2, y)\ndep d on c(x, 0..1)",
    "two readers": "grid a 8\ngrid b 8\ngrid c 4\ndep b on a(x)\ndep c on a(2*x..2*x + 1)",
}


def policy_of(text: str, order: bool = False) -> Policy:
    policy = parse_dependencies("tileprof dependencies 1\n" + text).policy()
    if not order:
        return policy
    stages = tuple(replace(s, order=tuple(reversed(range(s.tiles)))) for s in policy.stages)
    return replace(policy, stages=stages)


def compile_cuda(folder: Path, source: str, include: Path, *options: str) -> bytes:
    """Compile a source without a warning; the last option is the name of the result. Code for the GPU is not optimised,
    since it never runs.
    """
    quick = ("-Xcicc", "-O0", "-Xptxas", "-O0")
    result = subprocess.run(
        [NVCC, "-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall", *quick, "-I", include, source, *options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return (folder / options[-1]).read_bytes()


def write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_waits_for_cusync_cover_all_dependencies_and_one_producer_each(name: str, several: bool) -> None:
    policy = policy_of(TEXTS[name])
    expression = express(policy, several=several)
    assert verify(expression.policy, graph_of_waits(policy), range(len(policy.stages))).sound
    inside = [e for e in expression.policy.edges if (e.producer, e.consumer) not in expression.events]
    assert len({e.consumer for e in inside}) == len(inside)
    arrays = [{e.semaphores for e in inside if e.producer == p} for p in range(len(policy.stages))]
    assert all(len(a) <= 1 for a in arrays)
    if not several:
        numbers = {id(e) for e in inside}
        assert all(np.diff(w.indptr).max() <= 1 for w in lower(expression.policy) if id(w.edge) in numbers)


@pytest.mark.parametrize(
    ("name", "semaphores", "message"),
    [
        ("rows", 4, ()),
        ("strided", 12, ()),
        ("halo", 1, ("one for the whole grid",)),
        ("two readers", 4, ("semaphores that are awaited together are one, 4",)),
        ("join", 4, ("is launched after all of a (an event)",)),
    ],
)
def test_waits_that_cusync_cannot_express_become_the_finest_superset_with_a_note(
    name: str, semaphores: int, message: tuple[str, ...]
) -> None:
    expression = express(policy_of(TEXTS[name]))
    assert expression.policy.semaphores[0].count == semaphores or name == "join"
    assert len(expression.reasons) == len(message)
    header = cusync_files(policy_of(TEXTS[name]))[0]["policy.h"]
    for reason, text in zip(expression.reasons, message, strict=True):
        assert text in reason
        assert reason.split()[0] in header.split("over-synchronises")[1]


def test_several_waits_keep_the_window() -> None:
    expression = express(policy_of(TEXTS["halo"]), several=True)
    assert expression.reasons == ()
    assert expression.policy.semaphores[0].count == 9


@st.composite
def relations(draw: st.DrawFn) -> str:
    stages = range(draw(st.integers(2, 4)))
    lines = [f"grid s{stage} {draw(st.integers(1, 5))} x {draw(st.integers(1, 3))}" for stage in stages]
    for consumer in range(1, len(lines)):
        for producer in range(consumer):
            px, py = (int(n) for n in lines[producer].split("s", 1)[1].split(" ", 1)[1].split(" x "))
            for _ in range(draw(st.integers(0, 2))):
                a, b, c = (draw(st.integers(0, 5)) for _ in range(3))
                lines.append(f"dep s{consumer} on s{producer}(({a}*x + {b}*y + {c}) % {px}, ({c}*x + {a}) % {py})")
    return "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(relations(), st.booleans())
def test_any_policy_is_expressed_as_a_superset(text: str, several: bool) -> None:
    if "dep" not in text:
        return
    policy = policy_of(text)
    expression = express(policy, several=several)
    assert verify(expression.policy, graph_of_waits(policy), range(len(policy.stages))).sound


HARNESS = """
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <cusync/cusync.h>

template <typename Policy>
void show(const char* what, int stage, Policy policy, dim3 grid, uint32_t waits) {
  for (uint32_t z = 0; z < grid.z * waits; ++z)
    for (uint32_t y = 0; y < grid.y; ++y)
      for (uint32_t x = 0; x < grid.x; ++x) {
        const dim3 tile(x, y, z), other(77, 77, 77);  // code that used the grid argument would be wrong
        const bool some = policy.isSync(tile, other);
        const uint32_t number = x + grid.x * (y + grid.y * (z % grid.z));
        unsigned index = policy.tileIndex(tile, other);
        if (some) std::printf("wait %d %u %u %u\\n", stage, number, index, policy.waitValue(tile, other));
        if (policy.postValue(tile, other)) std::printf("post %d %u %u 1\\n", stage, number, index);
      }
}
HEADERS
int main(int, char** words) {
  switch (std::atoi(words[1])) {
    CASES
  }
  return 2;
}
"""
HEADER = """
#define tileprof_policy policy_NUMBER
#include "NUMBER/policy.h"
#undef tileprof_policy
int shown_NUMBER() {
  using namespace policy_NUMBER;
  (void)check, (void)on_device, (void)next_round;
  CALLS
  return 0;
}
"""

COMPILED = (("halo", True), ("table", True), ("table", False), ("join", False))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[set[tuple[object, ...]]]]:
    """Return a program that prints the waits and posts of each of `COMPILED`, and those that are expected. It is one,
    since headers of the compiler take most of the time.
    """
    folder = tmp_path_factory.mktemp("harness")
    headers, results = [], []
    for number, (name, several) in enumerate(COMPILED):
        texts, calls, expected = shown(policy_of(TEXTS[name], order=name == "join"), several=several)
        write(folder / str(number), texts)
        headers.append(HEADER.replace("NUMBER", str(number)).replace("CALLS", "\n  ".join(calls)))
        results.append(expected)
    cases = "\n    ".join(f"case {number}: return shown_{number}();" for number in range(len(COMPILED)))
    write(folder, {"harness.cu": HARNESS.replace("HEADERS", "".join(headers)).replace("CASES", cases)})
    compile_cuda(folder, "harness.cu", INCLUDE, "-arch=sm_90", "-diag-suppress=177", "-o", "harness")
    return folder / "harness", results


@needs_nvcc
@pytest.mark.parametrize("number", range(len(COMPILED)), ids=[f"{name}-{several}" for name, several in COMPILED])
def test_the_compiled_policies_wait_and_post_as_the_policy_says(harness, number: int) -> None:
    program, expected = harness
    process = subprocess.run([program, str(number)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in process.stdout.splitlines()]
    assert expected[number]
    assert {(word, *map(int, numbers)) for word, *numbers in rows} == expected[number]


def shown(policy: Policy, *, several: bool) -> tuple[dict[str, str], list[str], set[tuple[object, ...]]]:
    """Return a policy's files, the calls that show what its header waits for and posts, and what they should print."""
    texts, result = cusync_files(policy, several=several)
    calls: list[str] = []
    expected: set[tuple[object, ...]] = set()
    waits_of_pair = {(w.edge.producer, w.edge.consumer): w for w in lower(result.policy)}
    for number, (stage, title) in enumerate(
        zip(result.policy.stages, identifiers([s.name for s in policy.stages]), strict=True)
    ):
        grid = f"dim3{stage.grid}"
        if stage.order is not None:
            calls.append(f"if ({title}Order().blockIndex({grid}, dim3(0, 0, 0)) != {stage.tiles - 1}) return 1;")
        if out := result.edge_from(number):
            of = waits_of_pair[out.producer, out.consumer].of
            expected |= {("post", number, tile, int(s), 1) for tile, s in enumerate(of)}
            calls.append(f'show("post", {number}, {_host(title + "Posts", texts)}, {grid}, 1);')
        if into := result.edge_into(number):
            w = waits_of_pair[into.producer, number]
            most = int(np.diff(w.indptr).max())
            tiles = np.repeat(np.arange(stage.tiles), np.diff(w.indptr))
            expected |= {
                ("wait", number, int(t), int(s), int(v)) for t, s, v in zip(tiles, w.semaphore, w.value, strict=True)
            }
            calls.append(f'show("wait", {number}, {_host(title + "Waits", texts)}, {grid}, {most});')
    return texts, calls, expected


def _host(name: str, texts: dict[str, str]) -> str:
    """Return the policy with its tables where the host can read them."""
    tables = [
        line.split("[")[0].split()[-1]
        for line in texts["policy.h"].splitlines()
        if line.startswith(f"static const uint32_t {name}_")
    ]
    return f"{name}({', '.join(tables)})"


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "architectures"),
    [
        ("halo", ARCHITECTURES),
        ("join", ARCHITECTURES[-1:]),
        pytest.param("join", ARCHITECTURES[:-1], marks=pytest.mark.nightly),
    ],
)
def test_header_and_example_compile_for_every_architecture(
    tmp_path: Path, name: str, architectures: tuple[str, ...]
) -> None:
    policy = policy_of(TEXTS[name], order=True)
    write(tmp_path, cusync_files(policy, several=True)[0])
    code = [word for a in architectures for word in ("-gencode", f"arch=compute_{a},code=sm_{a}")]
    compiled = compile_cuda(tmp_path, "example.cu", INCLUDE, "-c", *code, "-o", "example.o")
    assert all(f"sm_{a}".encode() in compiled for a in architectures)


@needs_nvcc
@pytest.mark.skipif("CUSYNC_PATH" not in os.environ, reason="CUSYNC_PATH names no checkout of cuSync")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_header_and_example_compile_unmodified_against_cusync_itself(tmp_path: Path, name: str, several: bool) -> None:
    root = Path(os.environ["CUSYNC_PATH"])
    write(tmp_path, cusync_files(policy_of(TEXTS[name]), several=several)[0])
    for architecture in ARCHITECTURES:
        options = (str(root / "src" / "cusync.cu"), f"-arch=sm_{architecture}", "-o", "example")
        assert len(compile_cuda(tmp_path, "example.cu", root / "src" / "include", *options)) > 0


HOSTILE = [
    '*/ int main() { system("rm -rf /"); } /*',
    "ends in a backslash\\",
    "trigraph ??/",
    'line\nbreak\r\n#include "x"',
    "\u202e\u2028reversed",
    "class", "__device__", "", "9lives", "a b", "a.b", "A B", "x" * 500,
]  # fmt: skip


@needs_nvcc
def test_names_of_kernels_never_become_code(tmp_path: Path) -> None:
    lines = [f"grid s{n} 2" for n in range(len(HOSTILE))] + [f"dep s{n} on s{n - 1}(x)" for n in range(1, len(HOSTILE))]
    policy = policy_of("\n".join(lines))
    stages = tuple(replace(s, name=h, kernel=h, op=h, module=h) for s, h in zip(policy.stages, HOSTILE, strict=True))
    texts, _ = cusync_files(replace(policy, stages=stages))
    comment = [line for line in texts["policy.h"].splitlines() if line.startswith("//")]
    assert all(line.isascii() and "\\" not in line and "??" not in line and "*/" not in line for line in comment)
    before = texts["policy.h"].partition("#pragma once")[0]
    assert all(line == "" or line.startswith("//") for line in before.splitlines())
    write(tmp_path, texts)
    assert len(compile_cuda(tmp_path, "example.cu", INCLUDE, "-cubin", "-arch=sm_90", "-o", "example.cubin")) > 0


def test_a_shipped_policy_of_cusync_is_never_used() -> None:
    texts, _ = cusync_files(policy_of(TEXTS["rows"]))
    for text in texts.values():
        assert "RowSync" not in text
        assert "TileSync" not in text


def test_a_table_too_large_for_a_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cusync_parts, "MOST_NUMBERS", 100)
    policy = policy_of("grid a 101\ngrid b 101\ndep b on a((50*x) % 101)")
    with pytest.raises(UserError, match="export the policy as json"):
        cusync_files(policy)


def test_a_policy_without_waits_is_refused() -> None:
    policy = policy_of(TEXTS["rows"])
    with pytest.raises(UserError, match="nothing for cuSync"):
        cusync_files(replace(policy, semaphores=(), edges=()))


def test_a_header_has_a_wait_kernel_where_blocks_that_wait_could_fill_the_device() -> None:
    policy = policy_of(TEXTS["rows"])
    policy = replace(policy, options=replace(policy.options, wait_kernel=False))
    for sms, flag in ((100, True), (2, False)):
        graph = graph_of([stage.grid for stage in policy.stages], {(0, 1): {(0, 0)}}, sms=sms)
        texts, _ = cusync_files(
            policy, blocked=lambda exported, graph=graph: blocked_producers(exported, graph, [0, 1])
        )
        assert ("AvoidWaitKernel" in texts["policy.h"]) is flag
