"""Kernels that spin until another program releases them, with a fake driver: no wait for them is endless."""

import re
import shutil
import subprocess

import pytest

from tests.unit.record.cuda.native.fake_libraries import STREAMS, events, needs_tools
from tileprof.errors import UserError
from tileprof.record.cuda.records.graphs import Attribution, Graphs
from tileprof.record.cuda.settings import SPINNING, Settings

pytestmark = needs_tools

SPINNING_NAMES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)",
    "void barrier_on_stream_kernel(int, int)",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**, int, unsigned long, unsigned long, unsigned long)",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16**)",
    "void vllm::cross_device_reduce_1stage<half, 2>(vllm::RankData*, vllm::RankSignals)",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(int)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<half, 4>(int)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
)
OTHER_NAMES = (
    "void at::native::reduce_kernel<512, 1>(int)",
    "nvjet_tst_128x128_64x6_1x2_h_bz_TNT",
    "triton_red_fused_add_native_layer_norm_0",
    "void cusync::waitKernel(unsigned int volatile*, unsigned int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
)


@pytest.mark.parametrize("name", SPINNING_NAMES)
def test_kernels_of_the_libraries_that_let_gpus_talk_are_known_to_spin(name):
    assert re.search("|".join(SPINNING), name)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_kernels_are_not(name):
    assert not re.search("|".join(SPINNING), name)


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(UserError, match="--wait takes a number of seconds above 0, not 0"):
        Settings(wait_s=0)
    with pytest.raises(UserError, match="--include '\\(' is not a regular expression"):
        Settings(include="(")


def test_a_launch_that_waits_for_a_later_one_is_given_up_so_that_the_later_one_can_be_made(runner):
    process, _ = runner(
        STREAMS
        + """
inject(); module(); fake.fake_spin(S1)
launch_on(S1, b"void spins<int>(int*)"); launch_on(S2, b"lets_go"); fake.fake_let_go(S1)
launch_on(S1, b"after")
""",
        complaint="spins has not ended in 0.2 s: it may wait for a later launch.",
        TILEPROF_WAIT="0.2",
    )
    assert process.complete
    [given_up] = events(process, "spinning")
    assert (given_up["launch"], given_up["kernel"]) == (events(process, "launch")[0]["launch"], 0)
    assert all(len(process.of(e["launch"], 0)) == 2 for e in events(process, "launch"))


def test_a_launch_that_waits_in_the_default_stream_is_given_up_too(runner):
    process, output = runner(
        STREAMS
        + """
inject(); module(); fake.fake_spin(None); begin = time.monotonic()
launch_on(None, b"spins"); launch_on(S2, b"lets_go"); print(time.monotonic() - begin < 100); fake.fake_let_go(None)
""",
        complaint="spins has not ended in 0.5 s",
        TILEPROF_WAIT="0.5",
    )
    assert output == "True"
    assert process.complete


def test_nothing_behind_a_launch_that_was_given_up_is_waited_for(runner):
    _, output = runner(
        STREAMS
        + """
inject(); module(); fake.fake_spin(S1); launch_on(S1, b"spins"); begin = time.monotonic()
for n in range(100): launch_on(S2 if n % 2 else S1, b"other%d" % n)
launch_on(S1, b"spins")
print(time.monotonic() - begin < 45); fake.fake_let_go(S1)
""",
        complaint="spins has not ended",
        TILEPROF_WAIT="0.5",
    )
    assert output == "True"


def test_while_a_thread_waits_for_a_launch_another_can_make_the_one_that_lets_it_go(runner):
    process, output = runner(
        STREAMS
        + """
def other():
    time.sleep(0.3); launch_on(S2, b"lets_go"); fake.fake_let_go(S1)
inject(); module(); fake.fake_spin(S1); thread = threading.Thread(target=other); thread.start()
begin = time.monotonic()
launch_on(S1, b"spins"); thread.join(); print(time.monotonic() - begin < 60)
""",
        TILEPROF_WAIT="120",
    )
    assert output == "True"
    assert events(process, "spinning") == []
    assert all(len(process.of(e["launch"], 0)) == 2 for e in events(process, "launch"))


def test_records_stay_on_the_device_until_what_makes_them_has_ended(runner):
    process, _ = runner(
        STREAMS
        + """
inject(); module(); launch_on(S1, b"k"); fake.fake_spin(S1); launch_on(S1, b"k")
library.tileprof_drain(); library.tileprof_event(b'"e":"mark","op":"here"'); fake.fake_let_go(S1)
library.tileprof_drain()
""",
        TILEPROF_WAIT="0.2",
    )
    assert [e["e"] for e in process.events if e["e"] in {"mark", "drain"}] == ["mark", "drain"]
    assert all(len(process.of(e["launch"], 0)) == 2 for e in events(process, "launch"))


def test_a_program_that_ends_before_its_kernels_leaves_a_recording_that_says_that_it_is_partial(runner):
    process, _ = runner(
        STREAMS + 'inject(); module(); launch_on(S1, b"k"); fake.fake_spin(S1); launch_on(S1, b"k")',
        TILEPROF_WAIT="0.2",
    )
    assert not process.complete


def test_a_program_in_which_nothing_moves_any_more_is_ended_with_the_name_to_exclude(runner):
    process, _ = runner(
        STREAMS
        + """
inject(); module(); fake.fake_spin(S1); launch_on(S1, b"void space::spins<int>(int*)")
time.sleep(60)
""",
        expected=70,
        complaint="Leave it out with --exclude 'space::spins'",
        TILEPROF_WAIT="0.1",
    )
    assert not process.complete
    assert '"e":"hung","kernel":"space::spins"' in (process.folder / "events.jsonl").read_text()


def test_kernels_that_are_known_to_spin_have_a_place_and_no_records(runner):
    text = """
        stream = ctypes.c_void_p(0x51)
        inject(); module(); launch(); fake.fake_stream(stream); fake.fake_spin(stream); before = fake.fake_count(2)
        launch(b"ncclDevKernel_SendRecv"); print(fake.fake_count(2) - before)
        fake.fake_let_go(stream); launch()
    """
    process, output = runner(text, TILEPROF_SPINNING="|".join(SPINNING))
    assert output == "0"
    assert [(e["aside"], len(process.of(e["launch"], 0))) for e in events(process, "launch")] == [
        (0, 2),
        (1, 0),
        (0, 2),
    ]


def test_include_takes_kernels_off_the_list(runner):
    process, _ = runner(
        'inject(); module(); launch(b"ncclDevKernel_SendRecv"); launch(b"ncclDevKernel_Broadcast")',
        TILEPROF_SPINNING="|".join(SPINNING),
        TILEPROF_INCLUDE="SendRecv",
    )
    assert [e["aside"] for e in events(process, "launch")] == [0, 1]


def test_a_graph_that_has_not_ended_is_given_up_once_and_none_of_it_is_trusted(runner):
    process, output = runner(
        """
        import time
        inject(); module(); fake.fake_spin(None); begin = time.monotonic()
        for _ in range(40): fake.fake_graph(C, M, b"k", 3, 4, 0)
        print(time.monotonic() - begin < 60); fake.fake_let_go(None)
        """,
        complaint="a CUDA graph with k has not ended in 2 s",
        TILEPROF_WAIT="2",
    )
    assert output == "True"
    graphs = Graphs(process)
    assert {graphs.entries(e)[1] for e in events(process, "launch")} == {Attribution.INCOMPLETE}


def test_threads_that_launch_and_copy_records_do_not_wait_for_each_other_for_ever(runner):
    """In callbacks of launches, the driver holds a lock that the library's functions take too."""
    process, output = runner(
        STREAMS
        + """
def work(which):
    for n in range(150):
        launch(b"k%d_%d" % (which, n)); launch(b"k%d_0" % which); library.tileprof_drain()
        memory(1, 0x100000 * (which + 1), 4096); memory(0, 0x100000 * (which + 1), 4096)
inject(); module()
threads = [threading.Thread(target=work, args=(which,), daemon=True) for which in range(3)]
[t.start() for t in threads]
[t.join(200) for t in threads]
if any(t.is_alive() for t in threads): print("stuck", flush=True); os._exit(3)
print("done")
""",
        TILEPROF_WAIT="20",
    )
    assert output == "done"
    assert process.complete
    graphs = Graphs(process)
    whole = [len(graphs.entries(e)[0]) == 2 for e in events(process, "launch")]
    assert (len(whole), all(whole)) == (900, True)


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_library_shares_nothing_of_the_cpp_library_with_the_program(libraries):
    """PyTorch 2.11 exports parts of std::regex from another compiler; called from the library they crash."""
    result = subprocess.run(
        ["nm", "-D", "--defined-only", libraries.library], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in result.stdout.splitlines()}
    assert {name for name in names if not name.startswith("tileprof_")} == {
        "InitializeInjection",
        "InitializeInjectionNvtx2",
    }
