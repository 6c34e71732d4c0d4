"""Entries whose kernels a convolution cannot get are left out: depthwise ones of PyTorch or cuDNN, and Winograd's."""

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tiles.convolutions import convolution_table, fitting_entries
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout

H200 = get("H200")


@pytest.fixture(scope="module")
def table():
    return tables.table(convolution_table.FAMILY, H200)


def key(
    dtype=Dtype.FP16, *, layout=Layout.CONTIGUOUS, images=2, channels=64, size=(14, 14), taps=3, stride=1, groups=0
):
    window = (1, taps, taps, 1, stride, stride, 0, taps // 2, taps // 2, 1, 1, 1, 0, 0, 0)
    groups = groups or channels
    return (0, int(dtype), int(layout), 2, 0, groups, images, channels, channels, 1, *size, *window)


def test_pytorchs_rule_tells_depthwise_kernels_of_all_measured_calls(table):
    groups = np.flatnonzero(table.keys[:, 5] > 1)
    for row in groups[::7].tolist():
        of = tuple(table.keys[row].tolist())
        own = any("conv_depthwise" in one.name for one in convolution_table.launches_of(table, row))
        assert own == (fitting_entries.is_depthwise(of) and not fitting_entries.is_cudnn_depthwise(of))


@pytest.mark.parametrize(
    ("of", "is_cudnn"),
    [
        (key(), True),
        (key(Dtype.BF16), False),
        (key(Dtype.BF16, layout=Layout.CHANNELS_LAST), True),
        (key(channels=16), False),
        (key(taps=7), False),
        (key(size=(6, 6)), False),
        (key(stride=2, size=(28, 28)), False),
        (key(stride=2, size=(28, 28), channels=256), True),
        (key(stride=2, size=(14, 14), channels=512), True),
        (key(stride=2, images=1), True),
        (key(size=(1, 3), taps=5), True),
    ],
)
def test_pytorch_leaves_some_depthwise_calls_to_cudnn(of, is_cudnn, table):
    assert fitting_entries.is_cudnn_depthwise(of) == is_cudnn
    entry = convolution_table.entry(of, H200)
    assert all("conv_depthwise" not in one.name for one in entry.launches) == is_cudnn


def test_a_window_with_a_stride_is_not_transformed(table):
    winograd = [n for n, name in enumerate(table.columns["name"].tolist()) if "winogradWgradData4x4" in name]
    first, kernel = table.columns["first"], table.columns["kernel"]
    lists = {
        number for number in range(len(first) - 1) if set(winograd) & set(kernel[first[number] : first[number + 1]])
    }
    rows = np.isin(table.columns["sequence"], list(lists))
    assert fitting_entries.fitting(table, key(Dtype.TF32, groups=1))[rows].all()
    assert not fitting_entries.fitting(table, key(Dtype.TF32, groups=1, stride=2))[rows].any()


@pytest.mark.parametrize("images", [1, 2])
def test_groups_of_several_images_are_copied_for_kernels_that_take_channels_first(images, table):
    of = key(Dtype.TF32, images=images, groups=2)
    rows = np.flatnonzero(fitting_entries.fitting(table, of) & (table.keys[:, 5] == 2) & (table.keys[:, 2] == 0))
    names = [" ".join(one.name for one in convolution_table.launches_of(table, row)) for row in rows.tolist()]
    first = [some for some in names if "nchwkcrs_nchw" in some]
    assert first
    assert all(("genericTranspose" in some) == (images > 1) for some in first)
