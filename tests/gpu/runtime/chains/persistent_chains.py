"""Chains that the persistent kernel runs on a GPU."""

from __future__ import annotations

from tests.support.runtime.chains import biased, matrix
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import attention_block, convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.stages.conv import Conv2d


def narrowing() -> Chain:
    """A 3x3 convolution, then a 1x1 one of stride 2."""
    x, h, y = matrix("x", 4, 28, 28, 128), matrix("h", 4, 28, 28, 128), matrix("y", 4, 14, 14, 256)
    first = Conv2d(x, matrix("w1", 128, 3, 3, 128), h, matrix("b1", 128), tile=(112, 64), padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, Conv2d(h, matrix("w2", 256, 1, 1, 128), y, tile=(98, 64), stride=2)))


def wide_rows() -> Chain:
    """A row of pixels is so long that not all taps are loaded at once, but one row of them at a time."""
    x, h, y = matrix("x", 2, 9, 112, 128), matrix("h", 2, 9, 112, 128), matrix("y", 2, 9, 112, 128)
    first = Conv2d(x, matrix("w1", 128, 3, 3, 128), h, matrix("b1", 128), tile=(112, 128), padding=1, epilogue="relu")
    return Chain(
        ("first", "second"), (first, Conv2d(h, matrix("w2", 128, 3, 3, 128), y, residual=x, tile=(112, 128), padding=1))
    )


CHAINS = {
    "products": gelu_mlp(64, (64, 48), (64, 96), 1024, 512),
    "products of ragged sizes": gelu_mlp(100, (64, 48), (64, 112), 328, 200),
    "one token": gelu_mlp(1, (1, 48), (1, 96), 1024, 512),
    "gated products": gated_mlp(80, (64, 40), (64, 64), 512, 328),
    "high gated products": gated_mlp(300, (128, 88), (128, 192), 512, 704),
    "pairs": gelu_mlp(700, (256, 96), (256, 128), 512, 384),
    "gated pairs": gated_mlp(512, (256, 88), (256, 128), 512, 352),
    "pairs whose k is cut": gelu_mlp(200, (256, 96), (256, 128), 2112, 2048),
    "gated pairs whose k is cut": gated_mlp(256, (256, 88), (256, 64), 2048, 2112),
    "bias and residual": biased("float16", 200, 320, 256),
    "bfloat16": biased("bfloat16", 200, 320, 256),
    "convolutions, rows": convolution_pair(3, 14, 64, (98, 32)),
    "convolutions, images": convolution_pair(5, 7, 64, (98, 64)),
    "convolutions, parts of rows": convolution_pair(1, 32, 64, (16, 64)),
    "convolutions, two images whose halo is 64 pixels": convolution_pair(4, 6, 192, (72, 192)),
    "convolutions, taps of a row": wide_rows(),
    "a convolution of stride 2": narrowing(),
    "attention": attention_block(700, 256, 4, head=64, bias=True),
    "attention, groups of heads of 128": attention_block(500, 256, 4, 2),
}
