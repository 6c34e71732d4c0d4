import json

import pytest

from tileprof import devices
from tileprof.errors import UserError


@pytest.fixture
def describe(tmp_path):
    """Write a device file; other keys are those of an H200. None removes a key."""

    def write(**entries):
        values = {**devices.get("H200").to_dict(), **entries}
        path = tmp_path / "mine.json"
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
        return path

    return write


def refusal(path):
    with pytest.raises(UserError) as error:
        devices.get(path)
    return str(error.value)


def test_a_whole_json_description_is_read(describe):
    assert devices.get(describe(name="mine", sms=66)).sms == 66


def test_a_toml_file_gives_only_what_differs(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text('like = "h200"\nsms = 78\ndram_bytes_per_s = 4e12\n[sources]\nsms = "H20 datasheet"\n')
    device = devices.get(path)
    assert (device.name, device.sms, device.threads_per_sm) == ("slow", 78, 2048)
    assert device.sources["sms"] == "H20 datasheet"


def test_what_was_measured_for_a_replaced_number_is_forgotten(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text('like = "H200"\ndram_bytes_per_s = 2e12\n')
    device = devices.get(path)
    assert "dram_bytes_per_s" not in device.sustained
    assert "dram_bytes_per_s" not in device.sources
    assert device.sustained_bytes_per_s < 2e12
    assert device.sustained["bf16"] == 790e12


def test_a_description_from_before_links_were_known_has_those_of_an_h200(describe):
    old = devices.get(describe(link_read_ns=None, link_release_ns=None, link_trip_ns=None))
    h200 = devices.get("H200")
    assert (old.link_read_ns, old.link_release_ns) == (h200.link_read_ns, h200.link_release_ns)
    assert old.link_trip_ns == h200.link_trip_ns


def test_a_link_takes_half_its_round_trip_one_way_in_proportion_between_measured_numbers_of_blocks(describe):
    device = devices.get(describe(name="mine", link_trip_ns={"ring": {"10": 1000, "2": 600}, "copy": {"4": 80}}))
    assert [device.link_one_way_ns(blocks) for blocks in (1, 2, 4, 10, 500)] == [300, 300, 350, 500, 500]
    assert device.link_one_way_ns(7, "copy") == 40
    with pytest.raises(UserError, match="mine has no times of the link by way of 'relay'"):
        device.link_one_way_ns(1, "relay")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"sm": 3}, ["unknown key 'sm'", "did you mean sms?"]),
        ({"sms": None, "l2_bytes": None}, ["missing sms, l2_bytes"]),
        ({"sms": 0}, ["sms is 0", "above zero"]),
        ({"sms": -4}, ["sms is -4"]),
        ({"sms": 1.5}, ["sms is 1.5", "a whole number"]),
        ({"sms": True}, ["sms is True"]),
        ({"clock_mhz": "fast"}, ["clock_mhz is 'fast'"]),
        ({"clock_mhz": float("nan")}, ["clock_mhz is nan"]),
        ({"name": ""}, ["name is ''"]),
        ({"peak_flops": {"fp16": 1e12}}, ["peak_flops has no fp32"]),
        ({"peak_flops": {"fp32": 1e12, "bfloat16": 1e12}}, ["no type 'bfloat16'", "did you mean bf16?"]),
        ({"peak_flops": {"fp32": -1}}, ["peak_flops.fp32 is -1"]),
        ({"peak_flops": 3}, ["expected a table"]),
        ({"sources": ["x"]}, ["sources must map"]),
        ({"sms": 10**30}, ["sms is 1000000000000000000000000000000", "from 1 to 1e+06"]),
        ({"threads_per_sm": 10**12}, ["threads_per_sm is 1000000000000"]),
        ({"dram_bytes": 2**61}, ["dram_bytes is 2305843009213693952"]),
        ({"launch_gap_ns": 1e308}, ["launch_gap_ns is 1e+308", "from 0 to 1e+12"]),
        ({"dram_bytes_per_s": 1e-300}, ["dram_bytes_per_s is 1e-300"]),
        ({"peak_flops": {"fp32": 1e300}}, ["peak_flops.fp32 is 1e+300"]),
        ({"link_trip_ns": 5000}, ["link_trip_ns is 5000", "by way and number of blocks"]),
        ({"link_trip_ns": {"hosts": {"1": 5}}}, ["link_trip_ns has no way 'hosts'", "did you mean host?"]),
        ({"link_trip_ns": {"host": {}}}, ["link_trip_ns.host is {}"]),
        ({"link_trip_ns": {"host": {"one": 5}}}, ["link_trip_ns.host has 'one'", "a number of blocks"]),
        ({"link_trip_ns": {"host": {"0": 5}}}, ["link_trip_ns.host has '0'"]),
        ({"link_trip_ns": {"host": {"1": -5}}}, ["link_trip_ns.host.1 is -5"]),
        ({"link_trip_ns": {"host": {"1": 1e300}}}, ["link_trip_ns.host.1 is 1e+300", "from 0 to 1e+12"]),
    ],
)
def test_a_wrong_description_is_refused_with_the_key(describe, entries, words):
    message = refusal(describe(**entries))
    assert "mine.json" in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.toml", "x = ", "not valid TOML"),
        ("a.json", "[1]", "found list"),
        ("a.json", "[" * 100_000, "not valid JSON"),
        ("a.json", b"\xff\xfe\x00", "not valid JSON"),
        ("a.toml", 'like = "H9000"', "no device 'H9000'"),
        ("a.toml", "like = 3", "like is 3"),
        ("a.toml", 'like = "H200"\nsources = 3', "sources is 3"),
        ("a.json", " " * (2 << 20), "larger than"),
    ],
)
def test_a_file_that_is_no_description_is_refused(tmp_path, name, content, word):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert word in refusal(path)


def test_a_missing_file_is_named(tmp_path):
    assert "none.toml" in refusal(tmp_path / "none.toml")
