"""The host side of the injection library with a fake driver: reused handles, contexts that end, exits."""

import textwrap

import pytest

from tests.unit.record.cuda.native.fake_libraries import PROGRAM, events, needs_tools
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.graphs import Attribution, Graphs

pytestmark = needs_tools


def test_a_handle_that_is_given_out_again_stands_for_the_new_kernel(runner):
    process, _ = runner("inject(); module(0x1000); launch(); fake.fake_unload(C, M); module(0x2000); launch()")
    assert [(k["id"], k["code"][0]) for k in events(process, "kernel")] == [(0, 0x1000), (1, 0x2000)]
    assert [e["kernel"] for e in events(process, "launch")] == [0, 1]
    assert process.complete


def test_a_module_that_went_without_a_word_is_forgotten_when_its_handle_returns(runner):
    process, _ = runner("""
        inject(); module(0x1000); launch()
        module(0x2000); launch()
    """)
    assert [e["kernel"] for e in events(process, "launch")] == [0, 1]


def test_what_a_context_leaves_is_copied_before_it_dies_and_nothing_of_it_is_touched_after(runner):
    process, _ = runner("""
        inject(); module(); memory(1, 0x100000); launch(); fake.fake_destroy(C)
        D = ctypes.c_void_p(2); module(0x3000, D); launch(context=D)
    """)
    assert process.complete
    for event in events(process, "launch"):
        assert len(process.of(event["launch"], 0)) == 2
    assert [e["address"] for e in events(process, "free")] == [0x100000]
    assert [e["kernel"] for e in events(process, "launch")] == [0, 1]


def test_a_driver_that_calls_back_while_the_process_ends_is_not_listened_to(runner):
    process, _ = runner("fake.fake_calls_back_at_exit(); inject(); module(); memory(1, 0x100000); launch()")
    assert process.complete
    assert len(events(process, "alloc")) == 1


def test_a_driver_that_ends_first_is_not_called_and_the_recording_says_that_it_is_partial(runner):
    process, _ = runner("inject(); module(); launch(); fake.fake_ends_at_exit()")
    assert not process.complete


def test_after_a_kernel_that_faulted_the_recording_ends_with_what_was_copied(runner):
    process, _ = runner(
        "inject(); module(); launch(); library.tileprof_drain(); launch(); fake.fake_fault(); library.tileprof_drain()"
    )
    assert not process.complete
    assert (len(events(process, "launch")), process.lost) == (1, 1)


def test_records_that_were_copied_when_python_ended_are_complete_even_so(runner):
    process, _ = runner("""
        import atexit
        inject(); atexit.register(library.tileprof_drain); module(); launch(); fake.fake_ends_at_exit()
    """)
    assert process.complete
    assert len(process.entries) == 2


def test_a_forked_child_that_ends_by_itself_leaves_the_parents_records_alone(runner):
    process, _ = runner("""
        inject(); module(); launch()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0); launch()
    """)
    assert process.complete
    assert [e["e"] for e in process.events if e["e"] in {"start", "launch", "end"}] == [
        "start",
        "launch",
        "launch",
        "end",
    ]


def test_code_is_patched_and_launches_are_seen_in_ranges_only(runner):
    process, output = runner(
        """
        inject(); module(); launch(); print(fake.fake_count(0), end=" ")
        library.tileprof_capture(1); launch(); library.tileprof_capture(1); launch()
        print(fake.fake_count(0), fake.fake_count(1), end=" ")
        library.tileprof_capture(0); launch(); print(fake.fake_count(0), fake.fake_count(1), end=" ")
        library.tileprof_capture(1)
        module(0x4000, handle=ctypes.c_void_p(0x20)); launch(); launch(handle=ctypes.c_void_p(0x20))
        print(fake.fake_count(0), fake.fake_count(1))
        """,
        TILEPROF_PATCH="range",
        TILEPROF_CAPTURE="0",
    )
    assert output == "0 1 0 1 1 3 1"
    assert len(events(process, "launch")) == 4
    assert all(len(process.of(e["launch"], 0)) == 2 for e in events(process, "launch"))
    assert process.events[0]["ranged"] == 1


def test_nothing_is_recorded_while_a_compiler_times_kernels(runner):
    process, _ = runner(
        """
        inject(); module(); launch()
        library.tileprof_event(b'"e":"benchmark","on":1'); library.tileprof_pause(1); launch(); launch()
        library.tileprof_pause(0); library.tileprof_event(b'"e":"benchmark","on":0'); launch()
        """
    )
    assert [e["ordinal"] for e in events(process, "launch")] == [0, 3]
    assert not events(process, "capture")  # the program marked no range


def test_a_pause_outside_of_regions_leaves_recording_off(runner):
    process, _ = runner(
        "inject(); module(); library.tileprof_pause(1); launch(); library.tileprof_pause(0); launch()",
        TILEPROF_CAPTURE="0",
    )
    assert not events(process, "launch")


def test_memory_is_followed_outside_of_ranges(runner):
    process, _ = runner(
        "inject(); memory(1, 0x100000); mapped(1, 0x40000000, 1 << 21); memory(0, 0x100000)",
        TILEPROF_PATCH="range",
        TILEPROF_CAPTURE="0",
    )
    assert [(e["e"], e["address"]) for e in process.events if e["e"] in {"alloc", "free"}] == [
        ("alloc", 0x100000), ("alloc", 0x40000000), ("free", 0x100000),
    ]  # fmt: skip


def test_memory_that_a_program_maps_is_known_once_whether_it_is_reported_or_not(runner):
    process, _ = runner("""
        inject(); mapped(1, 0x40000000, 1 << 21); memory(1, 0x50000000, 1 << 21); mapped(1, 0x50000000, 1 << 21)
        mapped(0, 0x40000000, 1 << 21)
    """)
    assert [(e["e"], e["address"]) for e in process.events if e["e"] in {"alloc", "free"}] == [
        ("alloc", 0x40000000), ("alloc", 0x50000000), ("free", 0x40000000),
    ]  # fmt: skip


def test_a_successful_mapping_names_its_memory(runner):
    process, _ = runner("""
        inject(); fake.fake_create(ctypes.c_uint64(9), 0); mapped(1, 0x40000000, 1 << 21, 9)
        mapped(1, 0x50000000, 1 << 21, 9)
        mapped(1, 0x60000000, 1 << 21, 9, 801); fake.fake_create(ctypes.c_uint64(9), 2)
        fake.fake_create(ctypes.c_uint64(9), 0)
    """)
    assert [
        (e["e"], e.get("address"), e.get("handle")) for e in process.events if e["e"] in {"physical", "map", "alloc"}
    ] == [
        ("physical", None, 9), ("alloc", 0x40000000, None), ("map", 0x40000000, 9), ("alloc", 0x50000000, None),
        ("map", 0x50000000, 9), ("physical", None, 9),
    ]  # fmt: skip


SHARING = """
inject(); share = lambda exported, handle, file, type=1: fake.fake_share(exported, ctypes.c_uint64(handle), file, type)
file = os.open("/dev/null", os.O_RDONLY)
share(1, 9, file)
"""


def test_handles_of_memory_are_followed_through_files(runner):
    process, _ = runner(SHARING + "share(0, 11, file); share(1, 9, file, 8); share(0, 11, file, 8)")
    actual = [(e["e"], e["handle"], e["file"]) for e in process.events if e["e"] in {"exported", "imported"}]
    assert [f[:2] for f in actual] == [("exported", 9), ("imported", 11)]
    assert actual[0][2] == actual[1][2]


def test_a_file_of_another_process_is_not_taken_for_our_own_whatever_its_number(runner):
    process, _ = runner(
        SHARING + "os.close(file); again = os.open('/dev/zero', os.O_RDONLY); share(0, 11, again); print(again == file)"
    )
    assert not events(process, "imported")
    assert not events(process, "complaint")


def test_a_file_of_this_project_with_another_number_is_reported_as_unknown(runner):
    process, _ = runner(SHARING + "share(0, 11, os.dup(file))")
    [message] = events(process, "complaint")
    assert "another number of its file" in message["text"]


def test_what_could_not_be_unmapped_is_there_still(runner):
    process, _ = runner("""
        inject(); mapped(1, 0x40000000, 1 << 21, 9); mapped(0, 0x40000000, 1 << 21, 9, 1)
        mapped(0, 0x40000000, 1 << 21, 9)
        mapped(0, 0x40000000, 1 << 21, 9)
    """)
    kinds = [e["e"] for e in process.events if e["e"] in {"alloc", "map", "unmap", "free"}]
    assert kinds == ["alloc", "map", "unmap", "free"] * 2


def test_mappings_that_are_reported_as_one_allocation_are_unmapped_one_by_one(runner):
    process, _ = runner("""
        inject(); mapped(1, 0x40000000, 1 << 21, 9); mapped(1, 0x40200000, 1 << 21, 9); memory(1, 0x40000000, 2 << 21)
        mapped(0, 0x40200000, 1 << 21)
    """)
    assert [e["address"] for e in events(process, "unmap")] == [0x40200000]


def test_nodes_of_graphs_are_counted_waited_for_and_told_apart(runner):
    process, output = runner("""
        inject(); module(); before = fake.fake_count(2)
        fake.fake_graph(C, M, b"k", 3, 4, 0); fake.fake_graph(C, M, b"k", 3, 4, 0)
        print(fake.fake_count(2) - before >= 2)
    """)
    assert output == "True"
    assert [e["nodes"] for e in events(process, "graph_end")] == [4, 4]
    assert [(e["ended"], e["threads"]) for e in events(process, "nodes")] == [(4, 0), (4, 0)]
    graphs = Graphs(process)
    assert {graphs.entries(e)[1] for e in events(process, "launch")} == {Attribution.EXACT}
    assert {len(graphs.entries(e)[0]) for e in events(process, "launch")} == {3}


def test_a_graph_whose_nodes_did_not_all_end_is_not_trusted(runner):
    process, _ = runner('inject(); module(); fake.fake_graph(C, M, b"k", 3, 4, 1)')
    assert {Graphs(process).entries(e)[1] for e in events(process, "launch")} == {Attribution.INCOMPLETE}


BETWEEN = """
import threading
def in_another_thread(function):
    def run():
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    return ctypes.CFUNCTYPE(None)(run)
def launch_and(before=None, after=None, name=b"k", blocks=2):
    fake.fake_launch_and(C, M, name, blocks, before, after, ctypes.c_uint64(0))
"""


def test_records_are_not_copied_while_another_thread_launches(runner):
    """Its kernel may run while records are copied and cleared."""
    process, _ = runner(
        BETWEEN
        + "\ninject(); module(); launch(); launch_and(in_another_thread(lambda: library.tileprof_drain())); launch()",
        TILEPROF_WAIT="0.3",
    )
    assert process.complete
    graphs = Graphs(process)
    assert [graphs.entries(e)[1] for e in events(process, "launch")] == [Attribution.EXACT] * 3
    assert [len(graphs.entries(e)[0]) for e in events(process, "launch")] == [2] * 3


def test_each_launch_has_the_mark_of_its_thread_and_marks_without_launches_are_not_written(runner):
    process, output = runner(
        BETWEEN
        + """
inject(); module(); mark = library.tileprof_mark
def called(n): library.tileprof_called(b'"e":"called","op":"mine","arguments":{"n":%d},"tensors":[]' % n)
def of_another():
    mark(b"unused", b""); mark(b"theirs", b"m"); launch()
launch()
mark(b"unused", b""); mark(b"mine", b"a\\"b"); launch(); launch(); print(library.tileprof_marked())
in_another_thread(of_another)(); print(library.tileprof_marked()); called(1)
launch(); called(2)
in_another_thread(launch)()
mark(b"", b""); print(library.tileprof_marked()); launch()
"""
    )
    assert output.split() == ["1", "0", "0"]
    rows = [(e["e"], e.get("op"), e.get("module"), e.get("arguments")) for e in process.events]
    mine, launched = ("mark", "mine", 'a"b', None), ("launch", None, None, None)
    assert [row for row in rows if row[0] in {"mark", "called", "launch"}] == [
        launched, mine, launched, launched, ("mark", "theirs", "m", None), launched, mine, launched,
        ("called", "mine", None, {"n": 2}), ("mark", "", "", None), launched, ("mark", "", "", None), launched,
    ]  # fmt: skip


def test_records_stay_until_the_launching_call_returns_for_replays_look_at_them(runner):
    process, _ = runner(
        BETWEEN
        + """
def after():
    fake.fake_synchronize()
    library.tileprof_event(b'"e":"mark","op":"returns"')
inject(); module(); launch(); launch_and(after=ctypes.CFUNCTYPE(None)(after)); fake.fake_synchronize()
"""
    )
    kinds = [e["e"] for e in process.events if e["e"] in {"launch", "drain", "mark"}]
    assert kinds == ["launch", "launch", "mark", "drain"]
    assert all(len(process.of(e["launch"], 0)) == 2 for e in events(process, "launch"))


def test_a_program_that_executes_another_one_keeps_what_it_had_left(runner, tmp_path):
    text = """
        if len(sys.argv) == 1:
            inject(); module(); launch(); library.tileprof_drain(); launch()
            os.execv(sys.executable, [sys.executable, "-c", os.environ["TEXT"], "again"])
        inject(); module(); launch(); launch()
    """
    folders = runner.folders(text, TEXT=PROGRAM + textwrap.dedent(text))
    assert [(len(events(p, "launch")), p.complete) for p in folders] == [(1, False), (2, True)]


def test_entries_that_the_disk_does_not_take_end_the_recording_there(runner):
    """Launches that were drained earlier are complete; the others are not in the trace."""
    process, _ = runner("""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        inject(); module(); launch(blocks=64); library.tileprof_drain()
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        launch(blocks=512); library.tileprof_drain(); launch(); library.tileprof_drain()
    """)
    assert not process.complete
    assert [len(process.of(e["launch"], 0)) for e in events(process, "launch")] == [64]


def test_nodes_that_run_other_nodes_are_reported(runner):
    process, _ = runner(
        "inject(); fake.fake_node(C, 13); fake.fake_node(C, 12); fake.fake_node(C, 4); fake.fake_node(C, 5)"
    )
    assert [(e["node"], e["graph"]) for e in events(process, "opaque")] == [(13, 0), (12, 1), (4, 2)]


def test_outside_of_what_is_recorded_a_launch_is_replayed_once_for_each_shape_of_its_parameters(runner, cubin):
    """Products of different depths share kernel and grid; the addresses of their buffers do not matter."""
    process, _ = runner(
        """
        inject(); module(cubin=open(os.environ["CUBIN"], "rb").read()); memory(1, 0x100000); memory(1, 0x200000)
        for p in (256, 1024, 256, 1024, 0x100000, 0x200000):
            launch(parameter=p)
        """,
        CUBIN=cubin,
        TILEPROF_CAPTURE="0",
    )
    assert len(events(process, "learn")) == 3
    assert len(events(process, "owners")) == 3


def test_a_parameter_that_is_always_new_does_not_slow_a_program_down_for_ever(runner, cubin):
    process, _ = runner(
        """
        inject(); module(cubin=open(os.environ["CUBIN"], "rb").read())
        for p in range(1000, 1200):
            launch(parameter=p)
        """,
        CUBIN=cubin,
        TILEPROF_CAPTURE="0",
    )
    assert len(events(process, "learn")) == 64


def test_only_names_that_are_mangled_are_read_as_such(runner):
    process, _ = runner("inject(); module(); launch(b't'); launch(b'_Z1tPi'); launch(b'_Zt')")
    assert [k["name"] for k in events(process, "kernel")] == ["t", "t(int*)", "_Zt"]


def test_exits_are_kept_of_launches_whose_kernels_launch_others(runner, launching_cubin):
    process, _ = runner(
        """
        inject(); module(cubin=open(os.environ["CUBIN"], "rb").read()); launch(b"parent", 3)
        other = ctypes.c_void_p(0x20); module(0x2000, handle=other); launch(b"k", handle=other); launch(b"parent")
        """,
        CUBIN=launching_cubin,
    )
    launches = [e["launch"] for e in events(process, "launch")]
    kinds = [raw.kinds(process.of(number, 0)) for number in launches]
    assert [int((kind == raw.EXIT).sum()) for kind in kinds] == [3, 0, 2]


def test_constant_variables_that_the_driver_cannot_tell_are_not_taken_for_none(runner, cubin):
    process, _ = runner(
        'inject(); module(cubin=open(os.environ["CUBIN"], "rb").read()); fake.fake_refuse(b"cuModuleGetGlobal"); '
        "launch()",
        CUBIN=cubin,
    )  # fmt: skip
    assert not events(process, "constants")


@pytest.mark.parametrize("launched", ["launch(); launch()", 'fake.fake_graph_call(C, M, b"k", 3); launch()'])
def test_addresses_of_constant_variables_are_reported_once_per_kernel(runner, cubin, launched):
    process, _ = runner(f'inject(); module(cubin=open(os.environ["CUBIN"], "rb").read()); {launched}', CUBIN=cubin)
    assert [(e["kernel"], e["ranges"]) for e in events(process, "constants")] == [(0, [[0xC0000, 64]])]
    kinds = [e["e"] for e in process.events if e["e"] in {"launch", "constants"}]
    assert kinds == ["launch", "constants", "launch"], "none waits for the next launch"
    assert [k["constants"] for k in events(process, "kernel")] == [1]


def test_launches_of_a_module_that_was_not_patched_whole_say_so(runner):
    process, _ = runner("""
        inject(); module(); launch(); fake.fake_refuse(b"tileprof_access")
        module(0x4000, handle=ctypes.c_void_p(0x20)); launch(handle=ctypes.c_void_p(0x20))
    """)
    assert [e.get("unpatched", []) for e in events(process, "launch")] == [[], ["tileprof_access"]]


def test_words_that_streams_write_and_wait_for_are_events_when_they_happen(runner):
    process, _ = runner("""
        write_32, wait_64, batch = 663, 661, 667  # the present versions of the driver's functions
        inject(); value(write_32); value(wait_64, 0x200000); value(write_32, result=1)
        fake.fake_capturing(1); value(write_32); fake.fake_capturing(0)
        words = [5, 0x300000, 7, 0, 0, 0] + [6, 0, 0, 0, 0, 0] + [8, 0x400000, 0, 0, 0, 0]  # write, barrier, reduction
        value(batch, batch=(ctypes.c_uint64 * 18)(*words))
    """)
    assert [(e["to"], e["bytes"], e["writes"]) for e in events(process, "value")] == [
        (0x100040, 4, 1), (0x200000, 8, 0), (0x300000, 8, 1),
    ]  # fmt: skip
    assert len(events(process, "opaque")) == 1


def test_copies_of_arrays_are_read_off_the_drivers_calls(runner):
    process, _ = runner("""
        flat, deep, row = 289, 290, 284  # cuMemcpy2DAsync_v2, cuMemcpy3D_v2, cuMemcpyAtoD_v2
        inject(); fake.fake_array_copy(flat, 1, 0); fake.fake_array_copy(deep, 0, 1); fake.fake_array_copy(row, 0, 0)
        fake.fake_capturing(1); fake.fake_array_copy(flat, 1, 0)
    """)
    first, second = events(process, "array_copy")
    assert [first[k] for k in ("from", "from_array", "from_bytes", "from_pitch", "to", "to_array")] == [
        0x100100, 0, 15 * 256 + 64, 256, 0xA000, 1,
    ]  # fmt: skip
    assert [second[k] for k in ("from", "from_array", "to", "to_bytes", "depth")] == [
        0xA000, 1, 0x100100, 35 * 256 + 64, 2,
    ]  # fmt: skip
    assert [e["node"] for e in events(process, "opaque")] == [-1]


def test_copies_of_arrays_between_gpus_are_read_off_too(runner):
    process, _ = runner(
        "inject(); fake.fake_peer_array_copy(321, 1); fake.fake_peer_array_copy(320, 0)"
    )  # cuMemcpy3DPeerAsync, cuMemcpy3DPeer
    [copy] = events(process, "array_copy")
    assert [copy[k] for k in ("from", "from_array", "from_bytes", "to", "to_array")] == [
        0x100000,
        0,
        15 * 256 + 64,
        0xA000,
        1,
    ]
