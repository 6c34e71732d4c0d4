"""Gains predicted from a recorded trace alone, beside measured ones: ``python
tests/gpu/measuring/models/measure_predictions.py OUT.json --folder DIR --budget 420``.

Programs of `SIZES` are recorded, exported, verified and run as in `five_programs`. The prediction is what `tileprof
export` prints before anything runs, the measurement what `tileprof run` prints; stages are not timed alone. Rows are
written after each program, so that an interrupted run keeps what it measured. A folder of an earlier run is continued,
or only read (``--read``).
"""

import argparse
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import five_programs

AT_ONCE = 6
"""Programs that are recorded at the same time; each compiles and holds a CUDA context."""

MLP = """
up, down = torch.nn.Linear({width}, {hidden}), torch.nn.Linear({hidden}, {width})
net = torch.nn.Sequential(up, torch.nn.GELU(), down).half().cuda().eval()
x = torch.randn({tokens}, {width}, dtype=torch.float16, device="cuda")
"""
CONVOLUTIONS = """
layers = [layer for _ in range(2) for layer in (torch.nn.Conv2d({c}, {c}, 3, padding=1), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers).half().cuda().eval().to(memory_format=torch.channels_last)
x = torch.randn(1, {c}, {n}, {n}, dtype=torch.float16, device="cuda").to(memory_format=torch.channels_last)
"""
SIZES = {
    **five_programs.PROGRAMS,
    **{
        f"mlp_{width}_{hidden}_{tokens}": MLP.format(width=width, hidden=hidden, tokens=tokens)
        for width, hidden in ((768, 3072), (2048, 8192), (4096, 11008))
        for tokens in (16, 128, 512)
    },
    **{f"conv_{c}_{n}": CONVOLUTIONS.format(c=c, n=n) for c, n in ((64, 56), (128, 56), (256, 14), (512, 7))},
}

HELD_OUT = {
    "three_products_96": """
net = torch.nn.Sequential(
    torch.nn.Linear(1536, 6144), torch.nn.ReLU(), torch.nn.Linear(6144, 1536), torch.nn.ReLU(),
    torch.nn.Linear(1536, 1536)).half().cuda().eval()
x = torch.randn(96, 1536, dtype=torch.float16, device="cuda")
""",
    "mlp_5120_13824_8": MLP.format(width=5120, hidden=13824, tokens=8),
    "mlp_1280_5120_256": MLP.format(width=1280, hidden=5120, tokens=256),
    "bert_large_64": """
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer
net = BertLayer(BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096)).half().cuda().eval()
x = torch.randn(1, 64, 1024, dtype=torch.float16, device="cuda")
""",
    "gated_1024_2816_32": five_programs.PROGRAMS["gated"]
    .replace("width=2048, hidden=5504", "width=1024, hidden=2816")
    .replace("torch.randn(64, 2048", "torch.randn(32, 1024"),
    "conv_192_28": CONVOLUTIONS.format(c=192, n=28),
    "three_convolutions": CONVOLUTIONS.format(c=128, n=14)
    .replace("range(2)", "range(3)")
    .replace("randn(1", "randn(4"),
    "bottleneck": """
from torchvision.models.resnet import Bottleneck
net = Bottleneck(256, 64).half().cuda().eval().to(memory_format=torch.channels_last)
x = torch.randn(1, 256, 56, 56, dtype=torch.float16, device="cuda").to(memory_format=torch.channels_last)
""",
}
"""Listed on 2026-11-23, after the model's rules for boundaries were made from `SIZES`, and before any of these was
recorded. Nothing is tuned for them.
"""

PREDICTED = re.compile(r"kernels: ([\d.]+) us in stream order, ([\d.]+) us under the policy")
MEASURED = {"stream_us": re.compile(r"stream order +([\d.]+) us"), "policy_us": re.compile(r"this policy +([\d.]+) us")}


def row_of(walk):
    """Return predicted and measured times of a finished walk, in microseconds, or None."""
    text = (walk / "walk.txt").read_text() if (walk / "walk.txt").exists() else ""
    predicted = PREDICTED.search(text)
    actual = {name: pattern.search(text) for name, pattern in MEASURED.items()}
    if predicted is None or not all(actual.values()):
        return None
    stream, policy = (float(figure) for figure in predicted.groups())
    times_by_name = {name: float(match.group(1)) for name, match in actual.items()}
    return {"predicted_stream_us": stream, "predicted_policy_us": policy, **times_by_name}


def write(folder, out):
    """Write the rows of all walks so far."""
    rows = {walk.name: row_of(walk) for walk in sorted(folder.iterdir()) if walk.is_dir()}
    out.write_text(json.dumps({"rows": {name: row for name, row in rows.items() if row}}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(SIZES | HELD_OUT), help="default: all of SIZES")
    parser.add_argument("--held-out", action="store_true", help="the programs of HELD_OUT")
    parser.add_argument("--budget", type=float, default=420, metavar="SECONDS")
    parser.add_argument("--read", action="store_true", help="only read what --folder has")
    options = parser.parse_args()
    start_s = time.monotonic()
    five_programs.PROGRAMS.update(SIZES | HELD_OUT)
    names = options.only or list(HELD_OUT if options.held_out else SIZES)
    if not options.read:
        walks = [five_programs.Walk(name, options.folder) for name in names]
        for first in range(0, len(walks), AT_ONCE):
            some = walks[first : first + AT_ONCE]
            if time.monotonic() - start_s > options.budget:
                break
            with ThreadPoolExecutor(len(some)) as pool:
                list(pool.map(five_programs.Walk.prepare, some))
            for walk in some:
                if walk.codes.get("verify") == 0 and time.monotonic() - start_s < options.budget:
                    walk.do("run")
                    write(options.folder, options.out)
    write(options.folder, options.out)
    print(options.out.read_text())


if __name__ == "__main__":
    main()
