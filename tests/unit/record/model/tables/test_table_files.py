"""Tables on disk: exact and nearest look-up, detected damage, and GPUs for which they do not hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tileprof import devices
from tileprof.errors import UserError
from tileprof.record.model.tables import places, read, table, write
from tileprof.record.model.tables.file import Table

KEY = ("op", "m", "n")
H200 = devices.get("H200")
ABOUT = {"gpu": "H200", "architecture": H200.architecture, "sms": H200.sms, "library": "cublas", "version": "13.1.0"}


def apart(key):
    return lambda keys: np.abs(keys[:, 1:] - np.array(key[1:])).sum(axis=1).astype(float)


@pytest.fixture
def table_file(tmp_path):
    keys = np.array([(0, 1, 70_000), (0, 2, 64), (1, 2, 64), (1, 300, 64)], np.int64)
    write(tmp_path / "h200" / "products-cublas-13.1.npz", ABOUT, KEY, keys, {"tile": np.array([5, 6, 7, 8], np.uint16)})
    return tmp_path / "h200" / "products-cublas-13.1.npz"


@pytest.fixture
def folder(table_file, monkeypatch):
    monkeypatch.setattr(places, "FOLDER", table_file.parent.parent)
    return table_file.parent


def test_every_key_is_found_again_and_no_other(table_file):
    table_read = read(table_file)
    assert [table_read.row(key) for key in table_read.keys.tolist()] == [0, 1, 2, 3]
    assert table_read.row((1, 2, 65)) is None
    assert table_read.columns["tile"].tolist() == [5, 6, 7, 8]


@given(hnp.arrays(np.int64, (20, 3), elements=st.integers(0, 5)), st.tuples(*[st.integers(0, 5)] * 3))
def test_rows_are_those_of_a_search_one_by_one(keys, key):
    keys = np.unique(keys, axis=0)
    same = np.flatnonzero((keys == key).all(axis=1))
    assert Table({}, keys, {}).row(key) == (int(same[0]) if len(same) else None)


def test_the_nearest_entry_is_of_the_same_group(table_file):
    table_read = read(table_file)
    assert table_read.nearest({0: 1}, apart((1, 3, 64))) == (2, 1.0)
    assert table_read.nearest({0: 0}, apart((0, 3, 64))) == (1, 1.0)
    assert table_read.nearest({0: 9}, apart((9, 3, 64))) is None


def test_an_entry_can_be_left_out_as_leave_one_out_asks(table_file):
    assert read(table_file).nearest({0: 1}, apart((1, 2, 64)), without=2) == (3, 298.0)


def test_entries_at_an_infinite_distance_are_no_neighbours(table_file):
    assert read(table_file).nearest({0: 1}, lambda keys: np.full(len(keys), np.inf)) is None


def test_a_file_that_lost_its_end_names_itself_and_the_remedy(table_file):
    table_file.write_bytes(table_file.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"products-cublas-13\.1\.npz is damaged .*install tileprof again"):
        read(table_file)


def test_values_that_were_changed_are_noticed(table_file):
    with np.load(table_file) as file:
        arrays = {name: file[name] for name in file.files}
    with table_file.open("wb") as file:
        np.savez(file, **{**arrays, "tile": arrays["tile"] + 1})
    with pytest.raises(UserError, match="its digest is another"):
        read(table_file)


def test_a_table_holds_for_the_gpu_it_was_measured_on(folder):
    assert table("products", H200) is not None
    assert table("products", devices.get("H100")) is None


def test_a_gpu_with_other_sms_is_another_gpu(folder):
    assert table("products", replace(H200, sms=66)) is None


def test_the_newest_version_of_a_library_counts(folder, table_file):
    newer = table_file.with_name("products-cublas-13.10.npz")
    write(newer, {**ABOUT, "version": "13.10.0"}, KEY, np.zeros((1, 3), np.int64), {})
    assert table("products", H200).about["version"] == "13.10.0"
