import json
import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

from tileprof import devices
from tileprof.devices import Device
from tileprof.devices.device import LINK_WAYS
from tileprof.errors import UserError

ALL = devices.names()


def test_every_promised_gpu_is_there():
    documented_names = {"V100", "A100-40GB", "A100-80GB", "H100", "H200", "L4", "L40S", "RTX4090", "B200"}
    assert documented_names <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_device_survives_json(name):
    device = devices.get(name)
    assert device.name == name
    assert Device.from_dict(json.loads(json.dumps(device.to_dict()))) == device


@pytest.mark.parametrize("name", ALL)
def test_every_number_of_a_device_has_a_source(name):
    device = devices.get(name)
    numbers = {f.name for f in fields(Device)} - {"name", "architecture", "sources", "sustained"}
    assert numbers <= set(device.sources)
    assert not device.sustained or "sustained" in device.sources
    assert set(device.sources) <= numbers | {"sustained"}


@pytest.mark.parametrize("name", ALL)
def test_vector_peaks_follow_from_sms_and_clock(name):
    device = devices.get(name)
    lanes = 64 if device.architecture in ("sm_70", "sm_80") else 128
    assert device.peak_flops["fp32"] == pytest.approx(device.sms * lanes * 2 * device.clock_mhz * 1e6, rel=0.02)


@pytest.mark.parametrize("name", ALL)
def test_sustained_is_below_peak(name):
    device = devices.get(name)
    assert 0.5 * device.dram_bytes_per_s < device.sustained_bytes_per_s < device.dram_bytes_per_s
    for rate, peak in device.peak_flops.items():
        assert 0.5 * peak < device.sustained_flops(rate) < peak


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h200", "H200"),
        ("rtx 4090", "RTX4090"),
        ("a100", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),  # as torch.cuda.get_device_name() prints
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_spellings_of_the_driver_and_of_people_are_understood(spelling, name):
    assert devices.get(spelling).name == name


def test_no_two_devices_share_a_spelling():
    catalogue = tomllib.loads(files("tileprof.devices").joinpath("devices.toml").read_text())
    spellings = [w.casefold() for n, d in catalogue["device"].items() for w in (n, *d.get("aliases", ()))]
    assert len(spellings) == len(set(spellings))


def test_an_unknown_name_offers_a_close_match_and_the_list():
    with pytest.raises(UserError, match=r"no device 'H20O'; did you mean H200\?") as error:
        devices.get("H20O")
    assert all(name in str(error.value) for name in ALL)


def test_types_without_units_run_as_wider_ones():
    volta, hopper = devices.get("V100"), devices.get("H200")
    assert volta.sustained_flops("bf16") == volta.sustained_flops("fp32") == volta.sustained_flops("tf32")
    assert hopper.sustained_flops("bf16") == 790e12
    with pytest.raises(KeyError):
        hopper.sustained_flops("float16")


def test_ways_of_the_link_are_the_measured_medians():
    results = json.loads((Path(__file__).parents[2] / "gpu/results/link_ways.json").read_text())
    medians = {}
    for row in results["ways"]:
        medians.setdefault(row["way"], {})[str(row["blocks"])] = row["median_ns"]
    trips = dict(devices.get("H200").link_trip_ns)
    assert tuple(trips) == LINK_WAYS
    trips.pop("ring")  # measured separately, by link_times.cu
    assert trips == medians
