"""Small programs, written as traces without a recorder."""

from __future__ import annotations

import numpy as np

from tileprof.devices import get
from tileprof.trace import TraceWriter
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint, Launch

ROWS, HEADS, WIDE = 8, 8, 64  # row tiles, column tiles, width and height of a tile in elements
ELEMENT = 2
PITCH = HEADS * WIDE * ELEMENT


def tile_grid(columns, rows):
    """Return coordinates of ``rows * columns`` tiles, x fastest."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    return np.stack([x, y, np.zeros_like(x)], axis=1).astype(np.int32)


def panel(tile, operand, mode, row, column, columns, pitch=PITCH, rows=WIDE, last=1.0):
    """Return boxes of ``columns`` tile columns from ``column`` on, in the rows of tile row ``row``."""
    return Boxes.of(
        tile=tile,
        operand=operand,
        mode=mode,
        offset=np.asarray(row) * WIDE * pitch + np.asarray(column) * WIDE * ELEMENT,
        length=columns * WIDE * ELEMENT,
        count_0=rows,
        stride_0=pitch,
        first=0.0,
        last=last,
    )


def norm():
    tiles = np.arange(ROWS)
    grid = tile_grid(1, ROWS)[:, [1, 0, 2]]
    boxes = [panel(tiles, 0, READ, tiles, 0, HEADS), panel(tiles, 1, WRITE, tiles, 0, HEADS)]
    return Footprint(np.ascontiguousarray(grid), Boxes.concat(boxes), np.full(ROWS, 2_400.0))


def gemm(inner=1, outer=1):
    """Return accesses in which output tile (x, y) reads the input's tile row y; widths are in units of the hidden
    size.
    """
    columns = HEADS * outer
    grid = tile_grid(columns, ROWS)
    tiles, x, y = np.arange(len(grid)), grid[:, 0], grid[:, 1]
    boxes = [
        panel(tiles, 0, READ, y, 0, HEADS * inner, PITCH * inner),
        panel(tiles, 1, WRITE, y, x, 1, PITCH * outer),
    ]
    return Footprint(grid, Boxes.concat(boxes), 5_000.0 * inner * (1 + 0.1 * np.cos(tiles)))


def attention():
    grid = tile_grid(ROWS, HEADS)  # x: tile row, y: head
    tiles, row, head = np.arange(len(grid)), grid[:, 0], grid[:, 1]
    boxes = [
        panel(tiles, 0, READ, row, head, 1, 3 * PITCH),
        panel(tiles, 0, READ, 0, HEADS + head, 1, 3 * PITCH, rows=(row + 1) * WIDE),
        panel(tiles, 0, READ, 0, 2 * HEADS + head, 1, 3 * PITCH, rows=(row + 1) * WIDE),
        panel(tiles, 1, WRITE, row, head, 1),
    ]
    return Footprint(grid, Boxes.concat(boxes), 900.0 * (row + 1.0))


def pointwise(inputs=1, wide=1, tiles=64):
    chunk = ROWS * WIDE * PITCH * wide // tiles
    at = np.arange(tiles)
    grid = np.stack([at, 0 * at, 0 * at], axis=1).astype(np.int32)
    boxes = [Boxes.of(tile=at, operand=i, mode=READ, offset=at * chunk, length=chunk) for i in range(inputs)]
    boxes.append(Boxes.of(tile=at, operand=inputs, mode=WRITE, offset=at * chunk, length=chunk, last=1.0))
    return Footprint(grid, Boxes.concat(boxes), np.full(tiles, 800.0))


class Program:
    """A program being recorded; launches follow each other, 1 us apart."""

    def __init__(self, path, command=("python", "infer.py"), device="H200"):
        self.writer = TraceWriter(path, recorder="model", command=list(command), device=get(device))
        self.footprints = {}
        self.now = self.end = 0

    def buffer(self, wide=1, kind="activation", name=""):
        size = ROWS * WIDE * PITCH * wide
        self.end += size
        return self.writer.add_buffer(base=self.end - size, bytes=size, kind=kind, name=name)

    def launch(self, kernel, footprint, buffers, *, module="", op="", duration=20_000, **more):
        if kernel not in self.footprints:
            self.footprints[kernel] = (self.writer.add_footprint(footprint), footprint)
        number, footprint = self.footprints[kernel]
        grid = tuple(int(n) + 1 for n in footprint.block.max(axis=0)) if footprint.tiles else (1, 1, 1)
        options = {"timing": "modelled", "coverage": "exact", "blocks_per_sm": 1, "block": (128, 1, 1), "grid": grid}
        options |= more
        launch_number = self.writer.add_launch(
            Launch(
                footprint=number,
                operands=tuple((b, 0) for b in buffers),
                kernel=kernel,
                op=op,
                module=module,
                duration_ns=duration,
                begin_ns=self.now,
                **options,
            )
        )
        self.now += duration + 1_000
        return launch_number


def transformer(path, layers=4, **options):
    """Write a decoder like GPT-2: an embedding, ``layers`` times ten launches, a norm and a head."""
    program = Program(path, **options)
    x = program.buffer(name="hidden")
    program.launch(
        "embedding_row_gather", norm(), (program.buffer(kind="parameter"), x), module="wte", op="aten::embedding"
    )
    for layer in range(layers):
        x = _layer(program, x, f"transformer.h.{layer}")
    y, logits = program.buffer(), program.buffer(wide=3)
    program.launch("layer_norm_rows", norm(), (x, y), module="transformer.ln_f", op="aten::native_layer_norm")
    program.launch("gemm_f16_64x64_qkv", gemm(outer=3), (y, logits), module="lm_head", op="aten::mm")
    return program.writer.close()


def recurrent(path, layers=3, steps=5):
    """Write layers of time steps: each step reads its input and its layer's last state, and adds to it."""
    program = Program(path)
    inputs = [program.buffer() for _ in range(steps)]
    for layer in range(layers):
        state = program.buffer()
        program.launch("fill", pointwise(0), (state,), module=f"rnn.{layer}", op="aten::zeros", duration=800)
        for step in range(steps):
            gate, after = program.buffer(), program.buffer()
            program.launch(
                "cell_gemm", gemm(), (inputs[step], gate), module=f"rnn.{layer}.cell", op="aten::mm", duration=5_500
            )
            program.launch(
                "cell_add", pointwise(2), (gate, state, after), module=f"rnn.{layer}.cell", op="aten::add", duration=800
            )
            inputs[step] = state = after
    return program.writer.close()


def _layer(program, x, module):
    h, qkv, o, y, mid = (program.buffer(wide) for wide in (1, 3, 1, 1, 1))
    wide, act, z, out, h2 = (program.buffer(w) for w in (4, 4, 1, 1, 1))
    go = program.launch
    go("layer_norm_rows", norm(), (x, h), module=f"{module}.ln_1", op="aten::native_layer_norm", duration=2_400)
    go("gemm_f16_64x64_qkv", gemm(outer=3), (h, qkv), module=f"{module}.attn.c_attn", op="aten::addmm", duration=11_000)
    go("flash_attention_causal", attention(), (qkv, o), module=f"{module}.attn", op="aten::sdpa", duration=7_200)
    go("gemm_f16_64x64_proj", gemm(), (o, y), module=f"{module}.attn.c_proj", op="aten::addmm", duration=5_500)
    go("add_contiguous", pointwise(2), (x, y, mid), module=module, op="aten::add.Tensor", duration=800)
    go("layer_norm_rows", norm(), (mid, h2), module=f"{module}.ln_2", op="aten::native_layer_norm", duration=2_400)
    go("gemm_f16_64x64_fc", gemm(outer=4), (h2, wide), module=f"{module}.mlp.c_fc", op="aten::addmm", duration=11_000)
    go("gelu_contiguous", pointwise(1, 4), (wide, act), module=f"{module}.mlp.act", op="aten::gelu", duration=800)
    go("gemm_f16_64x64_fc2", gemm(inner=4), (act, z), module=f"{module}.mlp.c_proj", op="aten::addmm", duration=22_000)
    go("add_contiguous", pointwise(2), (mid, z, out), module=module, op="aten::add.Tensor", duration=800)
    return out
