"""Record the golden traces again, on a machine with a GPU, from the repository's root:
``python tests/golden/make.py FOLDER [NAME ...]``; NAMEs of `programs.py`, of `later.py` with "later/" before them.

"selftest" keeps the raw records of the recorder's self-test, so that decoding is tested on real records without a GPU.
"later/recurrent_filters" is the recurrent network of `measure_inserted.py`, whose patches filled Bloom filters.
"""

import os
import shutil
import sys
from pathlib import Path

from tileprof.record import Options
from tileprof.record.cuda import recording
from tileprof.record.cuda.installation import gpu, selftest
from tileprof.record.cuda.settings import Settings
from tileprof.record.filter_settings import FilterSettings

LATER = "later/"
NAMES = (
    "gemm_pair", "gemm_fp32", "layer_norm", "softmax", "attention", "convolution", "gpt2", "gpt2_compiled",
    "gpt2_graph",
    "selftest",
    *(f"{LATER}{name}" for name in ("llama", "bottleneck", "encoder", "perceptron", "patches", "mixture", "gru",
                                    "gru_cells", "lstm", "recurrent_filters")),
)  # fmt: skip


def trace(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    script, path = ("later", name[len(LATER) :]) if name.startswith(LATER) else ("programs", name)
    program = ("python3", f"tests/golden/{script}.py", path)
    options = Options(program=program, output=folder / f"{name}.tileprof", force=True)
    recording.record(options, Settings(capture_only=True))


def filters(folder: Path, name: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "gpu" / "measuring" / "recorder"))
    from measure_inserted import own_program

    folder.mkdir(parents=True, exist_ok=True)
    options = Options(program=(str(own_program(folder)), "recurrent"), output=folder / f"{name}.tileprof", force=True)
    recording.record(options, Settings(filters=FilterSettings(8192, 2, 512)))


def raw_selftest(folder: Path) -> None:
    program = selftest.program(folder, gpu.gpus()[0].architecture)
    raw = folder / "selftest-raw"
    shutil.rmtree(raw, ignore_errors=True)
    log, stdout = os.open(folder / "selftest.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), os.dup(1)
    os.dup2(log, 1)  # the program prints where its buffers lie
    options = Options(program=(str(program),), output=folder / "selftest.tileprof", force=True)
    recording.record(options, Settings(passes=("accesses",), raw=raw, verify=True))
    os.dup2(stdout, 1)
    shutil.rmtree(options.output)
    program.unlink()


def main(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or NAMES:
        if name == "selftest":
            raw_selftest(folder)
        elif name.endswith("filters"):
            filters(folder / "later", name.removeprefix(LATER))
        else:
            trace(folder, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
