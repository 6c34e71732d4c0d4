"""Hardware counters of parts of a PyTorch program through CUPTI's range profiler; what forbids them, where they are.

    python tests/gpu/measuring/arithmetic/hardware_counters.py OUT.json

``OUT.json`` gets what the driver says of counters, the counters of one product, or the call that failed and its answer,
and what Nsight Compute's command line and PyTorch's profiler make of the same product.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "programs" / "counters.cpp"
LEVELS = ("unknown", "unsupported", "disabled", "supported")
CHECKS = ("overall", "architecture", "SLI", "vGPU", "confidential computing", "mining processor", "WSL")
METRICS = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_elapsed",
    "SMs": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "ns": "gpu__time_duration.sum",
}
"""Shares are percent of the GPU's maximum in the elapsed cycles."""
PRODUCT = """
import torch
a = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
a @ a
torch.cuda.synchronize()
"""


class CountersError(RuntimeError):
    """CUPTI refused a call; ``call`` and ``result`` are in the message."""


class HardwareCounters:
    """Counts ``metrics`` (CUPTI's names) for the launches of a function, in the current CUDA context.

    Raises `CountersError` if the library, the driver or the machine do not allow it.
    """

    def __init__(self, metrics: Iterable[str]) -> None:
        self.metrics = list(metrics)
        self._library = load(cupti_of_torch())
        names = (ctypes.c_char_p * len(self.metrics))(*(name.encode() for name in self.metrics))
        passes = ctypes.c_size_t()
        chip = self.support()["chip"].encode()
        self._call("configure", chip, names, ctypes.c_size_t(len(self.metrics)), 1, ctypes.byref(passes))
        self.passes = passes.value
        context = ctypes.c_void_p()
        ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
        self._call("enable", context)

    def support(self) -> dict[str, str]:
        """Return what the driver says about counters on the first device, by check, and its chip."""
        levels, chip = (ctypes.c_int * len(CHECKS))(), ctypes.create_string_buffer(64)
        self._call("supported", 0, levels, chip, ctypes.c_size_t(len(chip)))
        return {check: LEVELS[level] for check, level in zip(CHECKS, levels, strict=True)} | {
            "chip": chip.value.decode()
        }

    def count(self, run: Callable[[], Any], synchronize: Callable[[], Any]) -> list[float]:
        """Run a function once per pass that the metrics need. Return their values."""
        self._call("begin")
        is_done = ctypes.c_int(0)
        while not is_done.value:
            self._call("start")
            run()
            synchronize()
            self._call("stop", ctypes.byref(is_done))
        values = (ctypes.c_double * len(self.metrics))()
        self._call("values", values)
        return list(values)

    def close(self) -> None:
        """Stop counting."""
        self._call("disable")

    def _call(self, name: str, *arguments: Any) -> None:
        if result := getattr(self._library, name)(*arguments):
            raise CountersError(f"{self._library.failed_call().decode()}: CUPTI result {result}{meaning(result)}")


def meaning(result: int) -> str:
    """Return CUPTI's name of a result, in brackets."""
    text = ctypes.c_char_p()
    ctypes.CDLL(cupti_of_torch()).cuptiGetResultString(result, ctypes.byref(text))
    return f" ({text.value.decode()})" if text.value else ""


def cupti_of_torch() -> str:
    """Return the library that PyTorch has loaded, or the system's."""
    maps = Path("/proc/self/maps").read_text()
    loaded = {line.split()[-1] for line in maps.splitlines() if "libcupti.so" in line}
    return min(loaded, default="libcupti.so.13")


def load(cupti: str) -> ctypes.CDLL:
    """Compile `counters.cpp` and load it on top of CUPTI. Raises `CountersError` if either is missing."""
    try:
        ctypes.CDLL(cupti, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CountersError(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "counters.so"
        compile_library(headers(), SOURCE, library)
        # RTLD_LAZY: functions that an older CUPTI lacks fail when they are called
        loaded = ctypes.CDLL(str(library), mode=1)
    loaded.failed_call.restype = ctypes.c_char_p
    return loaded


def headers() -> list[Path]:
    """Return folders with the headers of CUPTI and CUDA (from CUDA, NVIDIA's wheels or Triton); none if there is no
    CUPTI.
    """
    places = [Path("/usr/local/cuda/include"), Path("/usr/local/cuda/extras/CUPTI/include")]
    places += sorted(Path("/usr/local").glob("cuda-*/include"))
    for folder in map(Path, sys.path):
        places += [folder / "nvidia/cu13/include", folder / "triton/backends/nvidia/include"]
    present = [place for place in places if place.is_dir()]
    first = next((place for place in present if (place / "cupti_range_profiler.h").exists()), None)
    return [first, *present] if first else []


def compile_library(folders: list[Path], source: Path, library: Path) -> None:
    """Compile a C++ library. Raises `CountersError` with the compiler's output."""
    words = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", *(f"-I{folder}" for folder in folders)]
    compilation = subprocess.run([*words, str(source), "-o", str(library)], capture_output=True, text=True, check=False)
    if compilation.returncode:
        raise CountersError(compilation.stderr[-1500:])


def by_cupti() -> dict[str, Any]:
    """Return the counters of one product, or why there are none."""
    import torch

    a = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
    a @ a
    torch.cuda.synchronize()
    answer: dict[str, Any] = {"library": cupti_of_torch()}
    try:
        library = load(answer["library"])
        bare = HardwareCounters.__new__(HardwareCounters)
        bare._library = library
        answer["driver says"] = bare.support()
        counters = HardwareCounters(METRICS.values())
        answer["passes"] = counters.passes
        values = counters.count(lambda: a @ a, torch.cuda.synchronize)
        answer["product of 4096"] = dict(zip(METRICS, values, strict=True))
        counters.close()
    except CountersError as error:
        answer["refused"] = str(error)
    return answer


def by_command(*words: str) -> str:
    """Return the end of a command's output."""
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed"
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "no end within 60 s"
    return f"exit code {result.returncode}: {(result.stdout + result.stderr)[-1500:]}"


def main() -> None:
    """Try each way, and write its answer."""
    out = Path(sys.argv[1])
    parameters = Path("/proc/driver/nvidia/params")
    lines = parameters.read_text().splitlines() if parameters.exists() else []
    status = Path("/proc/self/status").read_text().splitlines()
    answer: dict[str, Any] = {
        "driver's parameters": [line for line in lines if "Prof" in line],
        "capabilities": [line for line in status if line.startswith("CapEff")],
    }
    metrics = ",".join(METRICS.values())
    for name, run in (
        ("CUPTI", by_cupti),
        ("ncu", lambda: by_command("ncu", "--metrics", metrics, sys.executable, "-c", PRODUCT)),
    ):
        answer[name] = run()
        out.write_text(json.dumps(answer, indent=1))
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
