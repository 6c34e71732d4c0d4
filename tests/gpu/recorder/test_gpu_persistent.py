"""Triton attention, and products by Triton and cuBLAS, whose blocks stay and take one tile after another, on a real
GPU.
"""

import sys

import pytest

from tileprof.trace import ATOMIC, WRITE, load, validate

pytest.importorskip("triton")

HEAD = '''
import sys, torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

torch.manual_seed(0)
SMS = torch.cuda.get_device_properties(0).multi_processor_count

@triton.jit
def attention_kernel(q, k, v, out, length, scale, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """One block of queries of a head against all keys before them."""
    first, head = tl.program_id(0) * BLOCK, tl.program_id(1)
    base, rows, columns = head * length * WIDTH, tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    queries = tl.load(q + base + (first + rows)[:, None] * WIDTH + columns[None, :])
    highest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([BLOCK, WIDTH], tl.float32)
    for key in range(0, first + BLOCK, BLOCK):
        keys = tl.load(k + base + (key + rows)[:, None] * WIDTH + columns[None, :])
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where((key + rows)[None, :] <= (first + rows)[:, None], scores, -1e30)
        now = tl.maximum(highest, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - now[:, None]), tl.exp(highest - now)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(v + base + (key + rows)[:, None] * WIDTH + columns[None, :])
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        highest = now
    result = (sums / total[:, None]).to(q.dtype.element_ty)
    tl.store(out + base + (first + rows)[:, None] * WIDTH + columns[None, :], result)

@triton.jit
def one_tile(a, b, c, tile, wide, deep, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tile // wide * M, tile % wide * N
    sums = tl.zeros([M, N], tl.float32)
    for k in range(deep):
        sums = tl.dot(a.load([row, k * K]), b.load([k * K, column]), sums)
    c.store([row, column], sums.to(tl.bfloat16))

@triton.jit
def product_static(a, b, c, high, wide, deep, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    for tile in range(tl.program_id(0), high * wide, tl.num_programs(0)):
        one_tile(a, b, c, tile, wide, deep, M, N, K)

@triton.jit
def product_dynamic(a, b, c, counter, high, wide, deep, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    tile = tl.atomic_add(counter, 1)
    while tile < high * wide:
        one_tile(a, b, c, tile, wide, deep, M, N, K)
        tile = tl.atomic_add(counter, 1)

def attention():
    q, k, v = (torch.randn(4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    def run():
        attention_kernel[(8, 4)](q, k, v, out, 512, 0.125, BLOCK=64, WIDTH=64)
    expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return run, out, expected

def product(kernel, blocks, *more):
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((1024, 512), (512, 768)))
    c = torch.empty(1024, 768, device="cuda", dtype=torch.bfloat16)
    maps = [TensorDescriptor.from_tensor(t, list(box)) for t, box in ((a, (128, 64)), (b, (64, 128)), (c, (128, 128)))]
    def run():
        for counter in more:
            counter.zero_()
        kernel[(blocks,)](*maps, *more, 8, 6, 8, M=128, N=128, K=64)
    return run, c, a @ b

def program(name):
    if name == "attention":
        return attention()
    if name == "static":
        return product(product_static, 20)
    if name == "cublas":
        a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4096, 2048), (3072, 2048)))
        out = torch.empty(4096, 3072, device="cuda", dtype=torch.bfloat16)
        def multiply():
            torch.mm(a, b.t(), out=out)
        return multiply, out, (a.float() @ b.float().t()).bfloat16()
    return product(product_dynamic, 20, torch.zeros(1, device="cuda", dtype=torch.int32))

run, out, expected = program(sys.argv[1])
run()
out.zero_()
torch.cuda.synchronize()
torch.cuda.profiler.start()
run()
torch.cuda.synchronize()
torch.cuda.profiler.stop()
torch.testing.assert_close(out, expected, atol=2e-1, rtol=2e-2)
'''


def trace_of(record, tmp_path, name):
    script = tmp_path / "program.py"
    script.write_text(HEAD)
    result = record(sys.executable, script, name, capture_only=True, verify=True, passes=("accesses",))
    assert result.code == 0
    trace = load(result.path)
    assert validate(trace) == []
    assert ", 0 of them outside every recorded write" in result.messages
    return trace


def kernel(trace, name):
    [row] = trace.launches[trace.launches.kernel.str.startswith(name)].to_dict("records")
    return row, trace.footprint(row["footprint"]).boxes


def test_an_attention_kernel_writes_a_block_of_queries_a_tile(record, tmp_path):
    row, boxes = kernel(trace_of(record, tmp_path, "attention"), "attention_kernel")
    assert row["coverage"] == "exact"
    assert row["tiles"] == 32
    writes = boxes.take(boxes.mode == WRITE)
    assert (writes.length * writes.count_0 * writes.count_1).sum() == 4 * 512 * 64 * 2


def test_blocks_that_take_tiles_in_a_fixed_order_are_split_into_them(record, tmp_path):
    row, boxes = kernel(trace_of(record, tmp_path, "static"), "product_static")
    assert row["coverage"] in {"exact", "inferred"}, row["note"]
    assert row["tiles"] == 48, row["note"]
    writes = boxes.take(boxes.mode == WRITE)
    assert (writes.length * writes.count_0 * writes.count_1).sum() == 1024 * 768 * 2


def test_blocks_that_take_tiles_from_a_counter_are_split_into_them_and_marked(record, tmp_path):
    row, boxes = kernel(trace_of(record, tmp_path, "dynamic"), "product_dynamic")
    assert row["coverage"] == "inferred", row["note"]
    assert row["tiles"] == 48, row["note"]
    writes = boxes.take(boxes.mode == WRITE)
    assert (writes.length * writes.count_0 * writes.count_1).sum() == 1024 * 768 * 2
    assert (boxes.mode == ATOMIC).any()


def test_a_large_product_of_cublas_is_split_into_tiles_that_cover_the_result(record, tmp_path):
    """The library chooses; with 13.0 on an H200 blocks take tiles from a counter, which it clears first."""
    row, boxes = kernel(trace_of(record, tmp_path, "cublas"), "nvjet")
    assert row["coverage"] in {"exact", "inferred"}, row["note"]
    assert row["tiles"] * 256 * 256 >= 4096 * 3072, row["note"]
    writes = boxes.take(boxes.mode == WRITE)
    assert (writes.length * writes.count_0 * writes.count_1).sum() == 4096 * 3072 * 2
