"""From ``tileprof record`` to a measured gain in five commands without an option: ``python
tests/gpu/measuring/models/five_programs.py DIR``.

Programs of PyTorch are recorded, reported, exported, verified and run. All are recorded, exported and verified at the
same time; the timed command runs alone. Every command has a time limit, after which the next one starts; ``--budget``
ends the script between two commands. ``--part prepare`` stops before the timed command, ``--part run`` continues there.
``DIR/PROGRAM/walk.txt`` keeps what each command printed, and ``walk.json`` its exit code and seconds.
``--results FILE`` writes the printed times of all programs in DIR, as `tests/gpu/results/five_programs.json` has them.
"""

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BEGIN = "import torch\ntorch.manual_seed(0)\n"
END = """with torch.no_grad():
    out = net(x)
    print((out[0] if isinstance(out, tuple) else out).float().norm().item())
"""
PROGRAMS = {
    "perceptron": """
up, down = torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 4096)
net = torch.nn.Sequential(up, torch.nn.GELU(), down).half().cuda().eval()
x = torch.randn(64, 4096, dtype=torch.float16, device="cuda")
""",
    "convolutions": """
layers = [layer for _ in range(2) for layer in (torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers).half().cuda().eval().to(memory_format=torch.channels_last)
x = torch.randn(1, 128, 28, 28, dtype=torch.float16, device="cuda").to(memory_format=torch.channels_last)
""",
    "bert": """
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer
net = BertLayer(BertConfig()).half().cuda().eval()
x = torch.randn(1, 128, 768, dtype=torch.float16, device="cuda")
""",
    "basicblock": """
from torchvision.models.resnet import BasicBlock
net = BasicBlock(128, 128).half().cuda().eval().to(memory_format=torch.channels_last)
x = torch.randn(1, 128, 28, 28, dtype=torch.float16, device="cuda").to(memory_format=torch.channels_last)
""",
    "gated": """
class Gated(torch.nn.Module):
    def __init__(self, width=2048, hidden=5504):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

net = Gated().half().cuda().eval()
x = torch.randn(64, 2048, dtype=torch.float16, device="cuda")
""",
}
TITLES = {
    "perceptron": ("MLP 4096-4096-4096 with GELU, 64 tokens", "both products, GELU in the first"),
    "convolutions": ("two 3x3 convolutions with ReLU, 28x28x128", "both, ReLU in the first"),
    "bert": (
        "encoder layer of transformers' BERT base, 128 tokens",
        "both products of its MLP, GELU in the first",
    ),
    "basicblock": (
        "torchvision's `BasicBlock`, 28x28x128",
        "both convolutions; batch norm and ReLU in the first",
    ),
    "gated": (
        "gated MLP 2048-5504-2048 with SiLU, 64 tokens",
        "three products, SiLU and the gate in the first two",
    ),
}
"""What the results file calls a program, and the stages of its policy."""
TIMES = {"pytorch": "PyTorch", "stream": "stream order", "policy": "this policy"}
"""Times that ``tileprof run`` prints."""

COMPILED = PROGRAMS["perceptron"] + "net = torch.compile(net)\n"
"""``compiled``, asked for by name, is the perceptron under torch.compile."""

COMMANDS = {
    "record": (["record", "--", "python", "infer.py"], 150),
    "report": (["report", "infer.tileprof"], 150),
    "export": (["export", "infer.tileprof"], 60),
    "verify": (["verify", "infer-json/policy.json", "infer.tileprof"], 60),
    "run": (["run", "infer-json/policy.json"], 90),
}
"""Arguments of ``tileprof``, and the seconds that each command gets."""


class Walk:
    """One program in a folder of its own."""

    def __init__(self, name, folder):
        self.name, self.folder, self.codes = name, folder / name, {}
        self.state_file = self.folder / "walk.json"
        if self.state_file.exists():
            self.codes = {step: code for step, (code, _) in json.loads(self.state_file.read_text()).items()}
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        program = COMPILED if name == "compiled" else PROGRAMS[name]
        (self.folder / "infer.py").write_text(BEGIN + program + END)

    def prepare(self):
        """Run all commands but the timed one."""
        for command in list(COMMANDS)[:-1]:
            if any(self.codes.values()):
                return
            self.do(command)

    def do(self, command):
        """Run one command. Its exit code, output and seconds go into the log at once."""
        words, limit_s = COMMANDS[command]
        start_s = time.monotonic()
        try:
            result = subprocess.run(
                [sys.executable, "-P", "-m", "tileprof", *words], cwd=self.folder, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
            )  # fmt: skip
            code, text = result.returncode, result.stdout
        except subprocess.TimeoutExpired as error:
            code, text = 124, (error.stdout or b"").decode(errors="replace")
        self.codes[command] = code
        seconds = round(time.monotonic() - start_s, 1)
        state = json.loads(self.state_file.read_text()) if self.state_file.exists() else {}
        self.state_file.write_text(json.dumps({**state, command: (code, seconds)}) + "\n")
        with (self.folder / "walk.txt").open("a") as file:
            file.write(f"$ tileprof {' '.join(words)}\n{text}[exit code {code}, {seconds} s]\n")
        excerpt = text[-5000:] if command != "report" else text[:1800]
        print(f"--- {self.name} $ tileprof {' '.join(words)}: exit {code}, {seconds} s\n{excerpt}", flush=True)


def row_of(name, text):
    """Return the row of a program for the results file; None if what its commands printed has no times."""
    times = {key: re.search(rf"^  {title} +([\d.]+) us", text, re.MULTILINE) for key, title in TIMES.items()}
    if not all(times.values()):
        return None
    title, stages = TITLES[name]
    us = {key: float(match[1]) for key, match in times.items()}
    gains = {f"over_{key}": round(us["policy"] / us[key] - 1, 3) for key in ("stream", "pytorch")}
    return {"program": title, "stages": stages, **us, **gains}


def results_of(folder):
    """Return the content of the results file, of the programs in a folder."""
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device, _, driver = (
        subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().partition(", ")
    )
    walks = {name: folder / name / "walk.txt" for name in TITLES}
    rows = [row_of(name, path.read_text()) for name, path in walks.items() if path.exists()]
    return {
        "script": "tests/gpu/measuring/models/five_programs.py", "device": device, "driver": driver,
        "cuda": torch.version.cuda, "torch": torch.__version__, "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "unit": "microseconds, medians of 30 replays of a CUDA graph, weights not in L2",
        "rows": [row for row in rows if row],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=[*PROGRAMS, "compiled"])
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--part", choices=("all", "prepare", "run"), default="all")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write the times of all programs in DIR here")
    options = parser.parse_args()
    start_s = time.monotonic()
    walks = [Walk(name, options.out) for name in options.only]
    if options.part != "run":
        with ThreadPoolExecutor(len(walks)) as pool:
            list(pool.map(Walk.prepare, walks))
    for walk in walks if options.part != "prepare" else ():
        if time.monotonic() - start_s < options.budget and walk.codes.get("verify") == 0:
            walk.do("run")
    for walk in walks:
        print(f"{walk.name:14}", "  ".join(f"{step}: {code}" for step, code in walk.codes.items()), flush=True)
    if options.results:
        options.results.write_text(json.dumps(results_of(options.out), indent=1) + "\n")


if __name__ == "__main__":
    main()
