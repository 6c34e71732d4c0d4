"""The rule for cuBLAS's Hopper kernels gives what was recorded on an H200 (driver 580.159, CUDA 13.0, PyTorch 2.11)."""

import pytest

from tileprof.devices import get
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.foundations import overrides
from tileprof.record.model.tiles.products import nvjet
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels

H200 = get("H200")


def product(m, n, k, dtype="bfloat16", itemsize=2):
    def matrix(rows, columns, ref):
        return Operand((1, rows, columns), (0, columns, 1), dtype, itemsize, ref=ref)

    return Product(matrix(m, k, 0), matrix(k, n, 1), matrix(m, n, 2))


# cuBLAS names its own, transposed problem: nvjet_sm90_tst_64x24_64x16_2x4_h_bz is 24 rows, 64 columns and 4 x 2
# blocks here.
RECORDED = [
    ((256, 1024, 512), (32, 64), (2, 1), 64),
    ((256, 512, 1024), (24, 64), (4, 2), 12),
    ((128, 768, 256), (16, 64), (4, 2), 12),
    ((128, 256, 256), (8, 64), (4, 2), 8),
    ((128, 1024, 256), (24, 64), (2, 4), 12),
    ((128, 256, 1024), (8, 64), (4, 2), 8),
]


@pytest.mark.parametrize(("sizes", "block", "cluster", "tiles"), RECORDED)
def test_blocks_and_clusters_are_those_that_were_recorded(sizes, block, cluster, tiles):
    actual = nvjet.choose(sizes, 1, itemsize=2, out_itemsize=2, rate="bf16", device=H200)
    assert ((actual.m, actual.n), actual.cluster) == (block, cluster)
    [kernel] = kernels(product(*sizes), H200)
    assert kernel.footprint.tiles == tiles
    blocks = cluster[0] * cluster[1]
    assert (kernel.block, kernel.registers, kernel.cluster) == ((384, 1, 1), 168, (blocks, 1, 1))
    assert kernel.grid == (blocks, tiles, 1)


def test_a_cluster_writes_the_area_that_was_probed():
    [kernel] = kernels(product(512, 2048, 1024), H200)
    writes = kernel.footprint.boxes.take(kernel.footprint.boxes.mode == 1)
    assert len(writes) == kernel.footprint.tiles == 64
    assert set(zip(writes.count_0.tolist(), writes.length.tolist(), strict=True)) == {(128, 256)}


def test_clusters_are_numbered_along_y_as_recorded():
    [kernel] = kernels(product(256, 512, 1024), H200)
    assert kernel.footprint.block.tolist() == [[0, y, 0] for y in range(12)]
    writes = kernel.footprint.boxes.take(kernel.footprint.boxes.mode == 1)
    assert [divmod(o, 1024) for o in writes.offset.tolist()[:5]] == [(0, 0), (0, 256), (0, 768), (96, 256), (96, 768)]


@pytest.mark.parametrize("sizes", [(8192, 8192, 4096), (256, 512, 16384), (256, 1000, 333)])
def test_what_was_not_recorded_is_left_to_the_general_rule(sizes):
    assert nvjet.choose(sizes, 1, itemsize=2, out_itemsize=2, rate="bf16", device=H200) is None
    assert nvjet.choose((256, 512, 1024), 1, itemsize=4, out_itemsize=4, rate="fp32", device=H200) is None
    assert nvjet.choose((256, 512, 1024), 1, itemsize=2, out_itemsize=2, rate="bf16", device=get("B200")) is None


def test_dictated_tiles_win():
    with overrides.override("gemm=128x128x64,split=1"):
        [kernel] = kernels(product(256, 512, 1024), H200)
    assert (kernel.grid, kernel.cluster) == ((2, 4, 1), (1, 1, 1))


def test_fp32_products_are_cut_along_k_and_added_tile_by_tile():
    main, reduction = kernels(product(256, 256, 256, "float32", 4), H200)
    assert (main.grid, main.block, reduction.grid, reduction.block) == ((8, 8, 4), (64, 1, 1), (8, 8, 1), (64, 1, 1))
    first = main.footprint.boxes.take((main.footprint.boxes.tile == 0) & (main.footprint.boxes.operand == 1))
    rows = {
        int(o) // 1024 + i * int(s) // 1024
        for o, n, s in zip(first.offset, first.count_0, first.stride_0, strict=True)
        for i in range(n)
    }
    assert {r % 32 // 8 for r in rows} == {0}, "slice 0 has rows 0 to 7 of every 32"
