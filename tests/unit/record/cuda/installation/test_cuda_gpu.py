"""What the driver says about GPUs, from a fake driver: several, slices, shared ones, none."""

import ctypes

import numpy as np
import pytest

from tests.unit.record.cuda.cuda_records import KERNEL, block_record, launch, process
from tests.unit.record.cuda.native.fake_libraries import needs_tools
from tileprof.devices import Device, get
from tileprof.errors import UserError
from tileprof.record.cuda import doctor, recorded_run
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.installation import gpu
from tileprof.record.cuda.records import raw
from tileprof.trace import TraceWriter, load, validate

pytestmark = needs_tools

H200 = "NVIDIA H200|9|0|132|150754820096|62914560|0"
SLICE = "NVIDIA H200 MIG 1g.18gb|9|0|16|17179869184|7864320|0"
SHARED = "NVIDIA H200|9|0|66|150754820096|62914560|1"
L4 = "NVIDIA L4|8|9|58|23580639232|50331648|"  # an older driver, which does not know MPS's attribute


@pytest.fixture
def driver(libraries, monkeypatch):
    """Provide a machine with these GPUs."""
    real = ctypes.CDLL
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(recorded_run.INJECTION, "/other.so")  # so that the doctor does not try what needs a real driver
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: real(libraries.driver if name == "libcuda.so.1" else name))

    def has(*gpus, **variables):
        for name, value in {"FAKE_GPUS": ";".join(gpus), **variables}.items():
            monkeypatch.setenv(name, value)

    return has


def test_several_gpus_are_listed_and_the_first_is_the_one_that_is_meant(driver, monkeypatch):
    driver(H200, L4)
    first, second = gpu.gpus()
    assert (first.sms, first.memory_bytes, first.mps, first.sliced) == (132, 150754820096, False, False)
    assert (second.architecture, second.mps) == ("sm_89", False)
    assert gpu.described([first]) == (
        "NVIDIA H200 (sm_90, 132 SMs, GPU-01010101-0101-0101-0101-010101010101); driver for CUDA 13.0"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    message = doctor.checks()[0].result
    assert "; the first of 2 (NVIDIA L4 (sm_89, 58 SMs, GPU-02020202-" in message
    assert message.endswith("; CUDA_VISIBLE_DEVICES=1,0")


def test_a_gpu_that_is_too_old_behind_a_newer_one_does_not_matter(driver):
    driver(H200, "Tesla P100|6|0|56|17179869184|4194304|0")
    assert doctor.checks()[0].ok
    driver("Tesla P100|6|0|56|17179869184|4194304|0", H200)
    assert "too old for Compute Sanitizer" in doctor.checks()[0].result


@pytest.mark.parametrize(
    ("result", "visible", "words"),
    [
        (100, "", "error 100): it shows no GPU, and CUDA_VISIBLE_DEVICES is ''. Without a GPU"),
        (100, "GPU-7", "CUDA_VISIBLE_DEVICES is 'GPU-7'"),
        (100, None, "it shows no GPU. Without"),
        (803, None, "its library is of another version than its kernel module: reboot"),
        (805, None, "MPS daemon that CUDA_MPS_PIPE_DIRECTORY names does not answer"),
        (4711, None, "`nvidia-smi` says more"),
    ],
)
def test_a_driver_that_does_not_start_is_named_with_what_mends_it(driver, result, visible, words):
    driver(FAKE_INIT=str(result), **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    with pytest.raises(UserError) as error:
        gpu.gpus()
    assert words in str(error.value)


def test_a_driver_without_gpus_says_who_hides_them(driver):
    driver(CUDA_VISIBLE_DEVICES="7")
    with pytest.raises(UserError, match="shows no GPU, and CUDA_VISIBLE_DEVICES is '7'"):
        gpu.gpus()


def test_a_whole_gpu_is_the_one_of_the_catalogue(driver):
    driver(H200)
    assert gpu.device(gpu.gpus()[0]) == get("H200")
    assert gpu.device(gpu.Gpu("NVIDIA H200", "sm_90", "13.0")) == get("H200"), "where the driver says nothing"


def test_a_gpu_with_fewer_sms_than_its_name_has_elsewhere_is_as_the_driver_says(driver):
    driver("NVIDIA H100 PCIe|9|0|114|85899345920|52428800|0")
    here, whole = gpu.device(gpu.gpus()[0]), get("H100")
    assert (here.sms, here.dram_bytes_per_s, here.l2_bytes) == (114, whole.dram_bytes_per_s, whole.l2_bytes)
    assert here.peak_flops["bf16"] == pytest.approx(whole.peak_flops["bf16"] * 114 / whole.sms)


def test_a_slice_has_its_own_sms_memory_and_rates(driver):
    driver(SLICE)
    actual, whole = gpu.gpus()[0], get("H200")
    assert actual.sliced
    assert actual.id.startswith("MIG-01010101-")
    here = gpu.device(actual)
    assert (here.name, here.sms, here.dram_bytes, here.l2_bytes) == ("H200 MIG 1g.18gb", 16, 17179869184, 7864320)
    memory = 17179869184 / whole.dram_bytes
    assert here.dram_bytes_per_s == pytest.approx(whole.dram_bytes_per_s * memory)
    assert here.peak_flops["bf16"] == pytest.approx(whole.peak_flops["bf16"] * 16 / 132)
    assert here.sustained["bf16"] == pytest.approx(790e12 * 16 / 132)
    assert here.sustained["dram_bytes_per_s"] == pytest.approx(4.3e12 * memory)
    assert (here.threads_per_sm, here.architecture) == (whole.threads_per_sm, "sm_90")
    assert Device.from_dict(here.to_dict()) == here
    assert "16 of 132 SMs of H200" in here.sources["peak_flops"]


def test_an_mps_client_has_the_sms_that_the_driver_counts_and_all_memory(driver):
    driver(SHARED)
    actual, whole = gpu.gpus()[0], get("H200")
    here = gpu.device(actual)
    assert (here.name, here.sms, here.dram_bytes_per_s) == ("H200", actual.sms, whole.dram_bytes_per_s)
    assert here.peak_flops["bf16"] == pytest.approx(whole.peak_flops["bf16"] * actual.sms / 132)


@pytest.mark.parametrize(
    ("arguments", "words"), [(SHARED, "clients of an MPS server"), (SLICE, "is a slice of a GPU (MIG)"), (H200, "")]
)
def test_a_shared_gpu_is_reported_but_does_not_end_a_recording(driver, arguments, words):
    driver(arguments)
    assert words in gpu.shared(gpu.gpus()[0])
    [check] = [check for check in doctor.checks() if check.name.startswith("GPU to itself")]
    assert (check.ok, check.needed) == (not words, False)
    assert words in check.result


def test_without_a_gpu_the_doctor_says_nothing_about_sharing_it(driver):
    driver(FAKE_INIT="100")
    assert not [check for check in doctor.checks() if check.name.startswith("GPU to itself")]


def test_blocks_on_sms_beyond_those_of_a_slice_get_the_slices_numbers(tmp_path):
    """The numbers are those of the whole GPU, as a slice may report them."""
    slice_ = gpu.device(gpu.Gpu("NVIDIA H200 MIG 1g.18gb", "sm_90", "13.0", sms=16, memory_bytes=1 << 34))
    numbers = [40, 131, 7, 40]
    entries = [block_record(1, block, 10, 20, sm=sm) for block, sm in enumerate(numbers)]
    first, second = (process(tmp_path, [KERNEL, launch(1, grid=(4, 1, 1))], entries) for _ in range(2))
    codes = first.entries["key"] >> np.uint64(raw.SM_BITS)
    raw.number_sms([first, second], slice_.sms)
    for result in (first, second):
        assert (raw.low(result.entries) & 0xFFF).tolist() == [1, 2, 0, 1]
        assert (result.entries["key"] >> np.uint64(raw.SM_BITS) == codes).all()
    with TraceWriter(tmp_path / "t.tileprof", recorder="cuda", command=["x"], device=slice_, granule=32) as writer:
        Decoder(first, writer, slice_).run()
        path = writer.close(0)
    trace = load(path)
    assert validate(trace) == []
    assert trace.times.sm.tolist() == [1, 2, 0, 1]
    assert trace.device.name == "H200 MIG 1g.18gb"


def test_clients_of_an_mps_server_that_ran_on_other_sms_or_on_more_have_a_number_for_each(tmp_path):
    def on(*sms):
        entries = [block_record(1, block, 10, 20, sm=sm) for block, sm in enumerate(sms)]
        return process(tmp_path, [KERNEL, launch(1, grid=(4, 1, 1))], entries)

    here, there, more = on(0, 1, 2, 3), on(4, 5, 6, 7), on(*range(10, 16))
    assert raw.number_sms([here, there], 4) == 4
    assert [(raw.low(result.entries) & 0xFFF).tolist() for result in (here, there)] == [[0, 1, 2, 3]] * 2
    assert raw.number_sms([more], 4) == 6
    assert (raw.low(more.entries) & 0xFFF).tolist() == [0, 1, 2, 3, 4, 5]


def test_blocks_within_the_sms_of_a_gpu_keep_their_numbers(tmp_path):
    actual = process(tmp_path, [KERNEL, launch(1)], [block_record(1, 0, 1, 2, sm=131), block_record(1, 1, 1, 2, sm=3)])
    raw.number_sms([actual], 132)
    assert (raw.low(actual.entries) & 0xFFF).tolist() == [131, 3]
    raw.number_sms([process(tmp_path, [KERNEL], [])], 132)
