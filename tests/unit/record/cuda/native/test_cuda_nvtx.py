"""NVTX ranges through NVTX's own headers: which launches of a program are recorded, with a fake driver."""

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.unit.record.cuda.native.fake_libraries import events, needs_tools
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.record.cuda.installation import locate, recorder_build

HEADER = "nvtx3/nvToolsExt.h"
WHERE = path_or_none(locate.nvcc) and path_or_none(locate.cuda_include)
pytestmark = [
    needs_tools, pytest.mark.skipif(WHERE is None or not (WHERE / HEADER).is_file(), reason=f"needs {HEADER}")
]  # fmt: skip

MARKS = """
marks = ctypes.CDLL(os.environ["MARKS"])
for name in ("domain", "domain_wide", "registered", "registered_wide"):
    getattr(marks, name).restype = ctypes.c_void_p
for name in ("start", "start_wide", "start_in"):
    getattr(marks, name).restype = ctypes.c_uint64
P = ctypes.c_void_p
def run(blocks): launch(blocks=blocks)
def begin(): inject(); module()
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    library = tmp_path_factory.mktemp("marks") / "libmarks.so"
    source = Path(__file__).parent / "nvtx_marks.cpp"
    compiler = [str(locate.host_compiler()), *recorder_build.HOST_FLAGS, f"-I{locate.cuda_include()}"]
    subprocess.run([*compiler, source, "-ldl", "-o", library], check=True)
    return str(library)


@pytest.fixture
def recorded_blocks(runner, libraries, marks, tmp_path):
    """Return the number of blocks of each recorded launch."""

    def run(text, pattern, **variables):
        for before in tmp_path.glob("process-*"):
            shutil.rmtree(before)
        process, output = runner(
            MARKS + textwrap.dedent(text),
            MARKS=marks, TILEPROF_NVTX=pattern, NVTX_INJECTION64_PATH=libraries.library, **variables,
        )  # fmt: skip
        assert not events(process, "complaint")
        launches = events(process, "launch")
        assert all(len(process.of(e["launch"], 0)) == e["grid"][0] for e in launches)
        run.output, run.ranges = output, (events(process, "ranges") or [None])[-1]
        return [e["grid"][0] for e in launches]

    return run


def test_launches_inside_matching_ranges_are_recorded_and_no_others(recorded_blocks):
    text = """
        begin(); run(1)
        marks.push(b"forward"); run(2); marks.pop(); run(3)
        marks.push(b"backward"); run(4); marks.pop()
    """
    assert recorded_blocks(text, "forward") == [2]
    assert recorded_blocks(text, "ward$") == [2, 4]
    assert recorded_blocks(text, "") == [1, 2, 3, 4], "no pattern sets no limit"


def test_ranges_nest_and_an_inner_one_that_does_not_match_changes_nothing(recorded_blocks):
    text = """
        begin()
        marks.push(b"layer 1"); run(1)
        marks.push(b"mlp"); run(2); marks.push(b"layer 1 again"); run(3); marks.pop(); run(4); marks.pop()
        run(5); marks.pop(); run(6); marks.pop(); run(7)
    """
    assert recorded_blocks(text, "layer 1") == [1, 2, 3, 4, 5]
    assert recorded_blocks(text, "mlp") == [2, 3, 4]


def test_each_thread_has_its_own_stack_and_what_a_thread_leaves_open_ends_with_it(recorded_blocks):
    text = """
        import threading, time
        begin()
        def other():
            marks.pop(); run(2); marks.push(b"never popped"); run(3)
        def threads(): return len(os.listdir("/proc/self/task"))
        marks.push(b"wanted"); run(1); before = threads()
        thread = threading.Thread(target=other); thread.start(); thread.join()
        for _ in range(200):  # what is joined is not yet gone
            if threads() > before: time.sleep(0.05)
        run(4); marks.pop(); run(5)
    """
    assert recorded_blocks(text, "wanted") == [1, 2, 3, 4]
    assert recorded_blocks(text, "never popped") == [3]


def test_a_range_that_is_started_may_be_ended_by_another_thread_and_out_of_order(recorded_blocks):
    text = """
        import threading
        begin()
        first, second = marks.start(b"step 1"), marks.start(b"step 2"); run(1)
        thread = threading.Thread(target=marks.end, args=(ctypes.c_uint64(first),)); thread.start(); thread.join()
        run(2); marks.end(ctypes.c_uint64(first)); marks.end(ctypes.c_uint64(99)); run(3)
        marks.end(ctypes.c_uint64(second)); run(4)
        third = marks.start_wide("step ü"); run(5); marks.end(ctypes.c_uint64(third))
    """
    assert recorded_blocks(text, "step") == [1, 2, 3, 5]
    assert recorded_blocks(text, "step 1") == [1]
    assert recorded_blocks(text, "step ü") == [5]


def test_domains_have_stacks_and_names_of_their_own(recorded_blocks):
    text = """
        begin()
        mine, other = P(marks.domain(b"mine")), P(marks.domain_wide("andere"))
        assert marks.domain(b"mine") == mine.value
        marks.push_in(mine, b"work"); run(1); marks.pop(); run(2); marks.pop_in(other); run(3); marks.pop_in(mine)
        run(4)
        marks.push_in(None, b"work"); run(5); marks.pop()
        id = marks.start_in(other, b"work"); run(6); marks.end_in(other, ctypes.c_uint64(id))
        marks.push_in_wide(other, "weite"); run(7); marks.pop_in(other); marks.destroy(other); run(8)
    """
    assert recorded_blocks(text, "work") == [1, 2, 3, 5, 6]
    assert recorded_blocks(text, "^work$") == [5]
    assert recorded_blocks(text, "work@mine") == [1, 2, 3]
    assert recorded_blocks(text, "@andere$") == [6, 7]


def test_registered_strings_and_ranges_without_a_name(recorded_blocks):
    text = """
        begin()
        d = P(marks.domain(b"d"))
        wide, narrow = P(marks.registered_wide(d, "größe")), P(marks.registered(d, b"step"))
        marks.push_registered(d, narrow); run(1); marks.push_registered(d, wide); run(2); marks.pop_in(d)
        marks.pop_in(d)
        marks.push_nothing(d); run(3); marks.pop_in(d)
        marks.push_registered(None, narrow); run(4); marks.pop()
    """
    assert recorded_blocks(text, "größe") == [2]
    assert recorded_blocks(text, "step") == [1, 2, 4]
    assert recorded_blocks(text, "^@d$") == [3]


def test_a_range_that_is_open_when_cuda_begins_counts(recorded_blocks):
    text = "marks.push(b'all'); begin(); run(1); marks.pop(); run(2)"
    assert recorded_blocks(text, "all") == [1]
    assert recorded_blocks(text, "all", TILEPROF_PATCH="range") == [1]


def test_a_thread_that_never_used_the_gpu_may_end_a_range_though_code_is_unpatched_then(recorded_blocks):
    text = """
        import threading
        begin(); id = marks.start(b"step"); run(1)
        thread = threading.Thread(target=marks.end, args=(ctypes.c_uint64(id),)); thread.start(); thread.join()
        print(fake.fake_count(1)); run(2)
    """
    assert recorded_blocks(text, "step", TILEPROF_PATCH="range") == [1], "without a complaint"
    assert recorded_blocks.output == "1"


def test_code_is_patched_and_launches_are_seen_inside_ranges_only(recorded_blocks):
    text = """
        begin(); run(1); print(fake.fake_count(0), end=" ")
        for n in range(2):
            marks.push(b"step"); run(2); marks.push(b"step"); run(3); marks.pop(); marks.pop(); run(4)
        print(fake.fake_count(0), fake.fake_count(1))
    """
    assert recorded_blocks(text, "step", TILEPROF_PATCH="range") == [2, 3, 2, 3]
    assert recorded_blocks.output == "0 2 2"


@pytest.mark.parametrize("opening", ['marks.push(b"step")', "library.tileprof_capture(1)"])
def test_a_region_that_begins_or_ends_while_a_graph_is_captured_waits_until_it_is_made(recorded_blocks, opening):
    """Code can only be patched while nothing runs, and waiting for that would break the capture."""
    closing = opening.replace('push(b"step")', "pop()").replace("(1)", "(0)")
    text = f"""
        begin(); stream = P(7)
        fake.fake_capture(1, stream); {opening}; print(fake.fake_count(0), end=" ")
        fake.fake_capture(0, stream); print(fake.fake_count(0), end=" "); run(1)
        fake.fake_capture(1, stream); {closing}; {opening}; {closing}; print(fake.fake_count(1), end=" ")
        fake.fake_capture(0, stream); print(fake.fake_count(0), fake.fake_count(1)); run(2)
        fake.fake_capture(1, stream); {opening}; {closing}; fake.fake_capture(0, stream); run(3)
    """
    nvtx = "step" if "push" in opening else ""
    variables = {} if nvtx else {"TILEPROF_CAPTURE": "0"}
    assert recorded_blocks(text, nvtx, TILEPROF_PATCH="range", **variables) == [1]
    assert recorded_blocks.output == "0 1 0 1 1"


def test_captured_regions_do_not_count_beside_ranges_but_where_they_were_asked_for_they_narrow_them(recorded_blocks):
    text = """
        begin()
        library.tileprof_capture(1); run(1); marks.push(b"x"); run(2); library.tileprof_capture(0); run(3)
        marks.pop(); run(4)
    """
    assert recorded_blocks(text, "x") == [2, 3]
    assert recorded_blocks(text, "x", TILEPROF_CAPTURE="0") == [2]


def test_what_matched_is_counted_and_names_are_listed_even_those_that_are_no_text(recorded_blocks):
    text = r"""
        begin()
        for n in range(3):
            marks.push(b"a\xff\"b"); marks.pop()
        marks.push("ü€𝄞".encode()); marks.pop()
        marks.push(b"x" * 200); marks.pop()
        for n in range(100):
            marks.push(b"step %d" % n); marks.pop()
        run(1)
    """
    assert recorded_blocks(text, "nothing") == []
    names = dict(recorded_blocks.ranges["names"])
    assert (recorded_blocks.ranges["pattern"], recorded_blocks.ranges["matched"]) == ("nothing", 0)
    assert (names['a?"b'], names["ü€𝄞"], names["x" * 120]) == (3, 1, 1)
    assert len(names) + recorded_blocks.ranges["unlisted"] == 103


def test_listeners_hear_of_every_matching_range_in_pairs(recorded_blocks):
    text = """
        heard = []
        listener = ctypes.CFUNCTYPE(None, ctypes.c_int)(heard.append)
        begin(); library.tileprof_listen(listener)
        marks.push(b"x"); marks.push(b"y"); marks.push(b"x"); marks.pop(); marks.pop(); marks.pop()
        marks.end(ctypes.c_uint64(marks.start(b"x")))
        library.tileprof_listen(None); marks.push(b"x"); marks.pop()
        print(heard)
    """
    recorded_blocks(text, "x")
    assert recorded_blocks.output == "[1, 1, -1, -1, 1, -1]"


def test_a_forked_child_may_mark_ranges_and_records_nothing(recorded_blocks):
    text = """
        begin(); marks.push(b"x"); run(1)
        child = os.fork()
        if child == 0:
            marks.pop(); marks.push(b"x"); run(2); os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run(3); marks.pop(); run(4)
    """
    assert recorded_blocks(text, "x") == [1, 3]


def test_a_push_and_a_pop_return_what_they_return_without_a_tool(recorded_blocks):
    recorded_blocks('begin(); print(marks.push(b"x"), marks.pop(), marks.pop())', "x")
    assert recorded_blocks.output == "-2 -2 -2"


def test_a_pattern_that_is_none_ends_in_a_sentence(runner, libraries, marks):
    """Python has checked the regular expression by then, and accepts slightly more."""
    text = (
        MARKS
        + """
library = ctypes.CDLL(os.environ["TILEPROF_LIBRARY"])
marks.push(b"x"); assert library.InitializeInjection() == 0; marks.pop()
"""
    )
    with pytest.raises(AssertionError, match=r"TILEPROF_NVTX=\(\?i\)x is not a regular expression"):
        runner(text, MARKS=marks, TILEPROF_NVTX="(?i)x", NVTX_INJECTION64_PATH=libraries.library)
