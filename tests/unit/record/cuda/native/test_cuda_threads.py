"""Threads of a program that launch, load, mark regions and destroy contexts at once, with a fake driver."""

from tests.unit.record.cuda.cuda_records import KERNEL, access, launch, process
from tests.unit.record.cuda.cuda_records import block_record as block
from tests.unit.record.cuda.native.fake_libraries import STREAMS, events, needs_tools
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.records.graphs import Attribution, Graphs
from tileprof.trace import TraceWriter, load

pytestmark = needs_tools

UNSEEN = """
BEFORE = ctypes.CFUNCTYPE(None)
def unseen(before=None, api_exit=0): fake.fake_launch_unseen(C, M, b"unseen", 2, before and BEFORE(before), api_exit)
"""


def attributions(result):
    graphs = Graphs(result)
    return [graphs.entries(e)[1] for e in events(result, "launch")]


def test_a_module_that_is_loaded_while_regions_end_and_begin_is_patched_once(runner):
    process, output = runner(
        STREAMS
        + """
inject(); library.tileprof_capture(1); fake.fake_pause(300)
thread = threading.Thread(target=module); thread.start(); time.sleep(0.1)
library.tileprof_capture(0); library.tileprof_capture(1); thread.join(); fake.fake_pause(0)
launch(); library.tileprof_capture(0); print(fake.fake_count(0), fake.fake_count(1))
""",
        TILEPROF_PATCH="range",
        TILEPROF_CAPTURE="0",
    )
    assert output == "1 1"
    assert attributions(process) == [Attribution.EXACT]


def test_a_module_that_is_unloaded_while_it_is_patched_is_left_alone_from_then_on(runner):
    process, output = runner(
        STREAMS
        + """
inject(); module(); fake.fake_pause(300)
thread = threading.Thread(target=library.tileprof_capture, args=(1,)); thread.start(); time.sleep(0.1)
fake.fake_unload(C, M); library.tileprof_capture(0); thread.join(); print(fake.fake_count(1))
""",
        TILEPROF_PATCH="range",
        TILEPROF_CAPTURE="0",
        MALLOC_PERTURB_="90",
    )
    assert output == "0"
    assert process.complete


def test_what_may_run_on_in_a_stream_that_takes_no_mark_is_not_trusted(runner):
    process, _ = runner(STREAMS + 'inject(); module(); launch_on(S1, b"k"); fake.fake_refuse_places(S1)')
    assert attributions(process) == [Attribution.INCOMPLETE]


def test_a_launch_that_ends_while_another_thread_copies_records_is_not_trusted(runner):
    process, _ = runner(
        STREAMS
        + UNSEEN
        + """
inject(); module(); launch_on(S1, b"k"); fake.fake_spin(S1)
launch_on(S1, b"k"); thread = threading.Thread(target=library.tileprof_drain)
def meanwhile():
    thread.start(); until_it_waits(thread)
fake.fake_stream(S2); unseen(meanwhile); fake.fake_let_go(S1); thread.join()
""",
        TILEPROF_WAIT="20",
    )
    assert [len(process.of(e["launch"], 0)) for e in events(process, "launch")][:2] == [2, 2]
    assert attributions(process) == [Attribution.EXACT, Attribution.EXACT, Attribution.INCOMPLETE]


def test_a_call_whose_begin_was_not_seen_has_captured_nothing(runner):
    process, _ = runner(UNSEEN + "inject(); module(); launch(); unseen(api_exit=1)")
    assert events(process, "captured") == []


def test_nodes_of_graphs_for_which_the_gpu_had_no_room_stand_for_all_memory(runner):
    process, _ = runner('inject(); module(); fake.fake_graph(C, M, b"k", 3, 2, 0)', FAKE_MEMORY="1000")
    assert attributions(process) == [Attribution.INCOMPLETE, Attribution.INCOMPLETE]


def test_what_a_thread_is_finding_out_about_stores_is_named_by_no_other_launch_before(runner, cubin):
    process, _ = runner(
        STREAMS
        + """
inject(); module(cubin=open(os.environ["CUBIN"], "rb").read()); fake.fake_pause(100)
HOOK = ctypes.CFUNCTYPE(None)
def meanwhile():
    thread.start(); time.sleep(1)
thread = threading.Thread(target=launch)
launch(parameter=5)
fake.fake_launch_and(C, M, b"k", 2, HOOK(meanwhile), None, ctypes.c_uint64(0))
thread.join(); fake.fake_pause(0)
""",
        CUBIN=cubin,
    )
    messages = [(e["e"], e["id"]) for e in process.events if e["e"] in {"owners", "owned"}]
    assert messages == [("owners", 0), ("owned", 0), ("owners", 1), ("owned", 1), ("owned", 1)]


def test_a_library_that_is_closed_stays(runner):
    """After that its thread, its handlers and the functions that the driver calls would be gone."""
    process, output = runner("""
        import _ctypes, time
        inject(); module(); _ctypes.dlclose(library._handle); launch(); time.sleep(0.1); print("on")
    """)
    assert output == "on"
    assert process.complete


def test_a_kernel_that_was_given_up_without_records_is_not_exact_later(tmp_path):
    memory = {"e": "alloc", "address": 0x100000, "bytes": 0x1000, "device": 0, "flags": 0}
    given_up = {"e": "spinning", "launch": 0, "kernel": 0, "seconds": 1}
    entries = [block(7, b, 1000, 1050) for b in (0, 1)] + [access(7, b, 0x100000 // 1024, write=1) for b in (0, 1)]
    with TraceWriter(tmp_path / "t", recorder="cuda", command=["x"], device=get("H200"), granule=32) as writer:
        Decoder(process(tmp_path, [KERNEL, memory, given_up, launch(7)], entries), writer, get("H200")).run()
    assert load(tmp_path / "t").launches.coverage.tolist() == ["conservative"]
