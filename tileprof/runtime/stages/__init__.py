"""Kernels that a stage of a policy can be: one description each, with the arithmetic of a tile on the CPU.

A stage's ``operator`` in a policy file names one and binds its operands::

    {"name": "gemm",
     "operands": {"a":   {"tensor": "x",  "shape": [512, 12288],  "strides": [12288, 1], "dtype": "float16"},
                  "b":   {"tensor": "w1", "shape": [12288, 6144], "strides": [1, 12288], "dtype": "float16"},
                  "out": {"tensor": "h",  "shape": [512, 6144],   "strides": [6144, 1],  "dtype": "float16"}},
     "parameters": {"tile": [128, 128], "epilogue": "gelu"}}

``tensor`` is a name that stages share: equal names are the same memory. Shapes, strides and the optional ``offset`` are
in elements from the tensor's first; a transposed operand is one with other strides, a half of a tensor one with an
offset. A tensor that is read before any stage writes it is an input of the pipeline; one that is written and read by no
later stage is an output. The grid that an operator computes from its shapes and its tile must be the stage's.

===========  =================================================
============================================================ name         operands (``out`` is written, ``?`` optional)
parameters ===========  =================================================
============================================================ gemm         a [(batch,) m, k], b [(batch,) k, n], out,
tile [rows, columns], epilogue (`epilogues.ACTIVATIONS`),
             bias? [n], residual? as out                        split_k (then out is float32 [split_k, m, n]), combine
             (add, multiply)
reduce       x [split, m, n], out [m, n], bias?, residual?      tile, epilogue
conv2d       x [n, h, w, c], weight [k, r, s, c],               tile [pixels, channels], stride, padding, epilogue,
combine
             out [n, p, q, k], bias? [k], residual? as out,     epsilon (of a batch norm)
             mean?, var?, scale? and shift? [k]
pointwise    x [m, n], y? as x, out as x                        tile, function: copy relu gelu gelu_tanh silu add mul
silu_mul elementwise  x, y? as x, out as x, of any dimensions            run (elements per tile), function as
pointwise's, number (times x);
                                                                on the CPU only
norm         x [m, n], weight? [n], bias? [n], out as x         rows (a tile), kind: layer rms; epsilon
softmax      x [m, n], out as x                                 rows (a tile), scale; dropout (share of elements that
become 0), seed attention    q [heads, m, d], k and v [groups, n, d], out as q  rows (a tile), causal, scale ===========
=================================================  ============================================================

Grids: x over columns (channels), y over rows (pixels), z over batches or splits of k; with ``"rows_along": "x"`` x and
y change places. `norm` and `softmax` have one tile per block of rows, along x, `attention` along y with heads along z,
`elementwise` one per run of elements.

What `softmax` drops follows from its ``seed`` and an element's place in x alone (`dropout`): the same in every run,
order and tiling, on the CPU and on a GPU, and other elements than PyTorch's generator would choose. Two stages that are
to drop differently have two seeds.
"""

from tileprof.runtime.stages.operator import Operator, Region, operator_of
from tileprof.runtime.stages.view import View

__all__ = ["Operator", "Region", "View", "operator_of"]
