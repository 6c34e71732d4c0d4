"""`make demo` once everything is installed, and its steps one by one."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import folder_bytes, header, run, spread, table, tileprof

REPETITIONS = 3


def main():
    header("make demo, after installation")
    run("make", "install")
    demo = [run("make", "demo").wall_s for _ in range(REPETITIONS)]
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "gpt2.tileprof", Path(folder) / "gpt2.html"
        program = (sys.executable, "-m", "tileprof.examples.gpt2")
        steps = {
            "record": ("record", "--force", "-o", str(trace), "--", *program),
            "analyse and report": ("report", str(trace)),
            "analyse and write the page": ("view", "--force", "-o", str(page), str(trace)),
        }
        rows = [(name, spread([tileprof(*step).wall_s for _ in range(REPETITIONS)])) for name, step in steps.items()]
        sizes = f"trace {folder_bytes(trace) / 1e6:.2f} MB, page {page.stat().st_size / 1e6:.2f} MB"
    table(("step", "wall"), [("make demo", spread(demo)), *rows])
    print(f"{REPETITIONS} repetitions; {sizes}")


if __name__ == "__main__":
    main()
