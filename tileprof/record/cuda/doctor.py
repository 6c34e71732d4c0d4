"""Checks what recording on this machine needs, and names the command that installs what is missing."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tileprof.errors import UserError
from tileprof.record.cuda import recorded_run
from tileprof.record.cuda.installation import gpu, locate, recorder_build
from tileprof.record.cuda.settings import Settings
from tileprof.record.cuda.tensor_maps import im2col, tensormap


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that recording needs: whether it is there, what was seen, and what to do when it is not.

    ``needed``: without it no access can be recorded; otherwise something smaller is lost.
    """

    name: str
    ok: bool
    result: str
    needed: bool = True


def checks() -> list[Check]:
    """Return all checks, in the order in which things are needed; those that depend on a failed one are left out."""
    out = [
        _check("driver and GPU", _gpus),
        *_sharing(),
        _check("Compute Sanitizer API", lambda: f"{locate.sanitizer().version} in {locate.sanitizer().library.parent}"),
        _check("CUDA compiler", lambda: f"{locate.nvcc()}, cuda.h in {locate.cuda_include()}"),
        _check("C++ compiler", lambda: str(locate.host_compiler())),
        _check("CUPTI for Python (durations)", _cupti, needed=False),
        _check("disassembler (fewer patches)", _disassembler, needed=False),
        _check("no other tool in CUDA programs", _injection),
    ]
    if all(check.ok for check in out if check.needed):
        out.append(_check("layout of tensor maps", lambda: _tensor_maps(tensormap.calibrate), needed=False))
        out.append(_check("layout of im2col maps", lambda: _tensor_maps(im2col.calibrate), needed=False))
        out.append(
            _check(
                "build of the recorder", lambda: str(recorder_build.build(gpu.gpus()[0].architecture).library.parent)
            )
        )
    if all(check.ok for check in out if check.needed):
        out.append(_check("self-test", _selftest))
    return out


def _check(name: str, look: Callable[[], str], *, needed: bool = True) -> Check:
    try:
        return Check(name, ok=True, result=look(), needed=needed)
    except UserError as error:
        return Check(name, ok=False, result=str(error), needed=needed)


def _gpus() -> str:
    devices = gpu.gpus()
    gpu.supported(devices[0])
    return gpu.described(devices)


def _sharing() -> list[Check]:
    """Return the checks of the GPU that is looked at; none without one."""
    try:
        first = gpu.gpus()[0]
    except UserError:
        return []
    text = gpu.shared(first)
    return [Check("GPU to itself (times)", ok=not text, result=text or "neither MPS nor a slice (MIG)", needed=False)]


def _cupti() -> str:
    try:
        return f"cupti-python {metadata.version('cupti-python')}"
    except metadata.PackageNotFoundError:
        driver = gpu.gpus()[0].driver
        raise UserError(
            f"Durations will come from instrumented runs. Type: {sys.executable} -m pip install "
            f"'cupti-python=={driver}.*'"
        ) from None


def _disassembler() -> str:
    tool_path = locate.nvdisasm()
    if tool_path is None:
        raise UserError(
            "No nvdisasm was found: every kernel is instrumented, which is slower, and stores through tensor maps that "
            "cannot be replayed are taken to go anywhere. "
            f"Type: {sys.executable} -m pip install nvidia-cuda-nvdisasm"
        )
    return str(tool_path)


def _injection() -> str:
    recorded_run.refuse_taken()
    return f"{recorded_run.INJECTION} is free"


def _tensor_maps(calibrate: Callable[[ctypes.CDLL], None]) -> str:
    if int(gpu.gpus()[0].architecture[3:-1]) < tensormap.FIRST_MAJOR:
        return "not used by this GPU"
    calibrate(gpu.driver())
    return "as expected"


def _selftest() -> str:
    from tileprof.record import Options  # noqa: PLC0415 - a heavy import, for this check alone
    from tileprof.record.cuda import recording  # noqa: PLC0415
    from tileprof.record.cuda.installation import selftest  # noqa: PLC0415
    from tileprof.trace import load  # noqa: PLC0415

    architecture = gpu.gpus()[0].architecture
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        executable = selftest.program(folder, architecture)
        options = Options(program=(str(executable),), output=folder / "selftest.tileprof")
        output = folder / "output.txt"
        settings = Settings(passes=("accesses",), verify=True)
        with output.open("wb") as file, _stdout_to(file.fileno()):
            code = recording.record(options, settings)
        if code != 0:
            raise UserError(f"the self-test ended with exit code {code}: {output.read_text(errors='replace').strip()}")
        trace = load(options.output)
        different, compared = selftest.compare(trace, selftest.buffers(output.read_text()))
    if different:
        lines = [
            f"launch {d.launch} {d.kernel}: {d.expected} granules expected, {d.actual} seen, {d.missing} missing, "
            f"{d.extra} extra"
            for d in different
        ]
        raise UserError("The recorder did not see what the self-test does:\n  " + "\n  ".join(lines))
    if len(compared) != selftest.launches(architecture):
        raise UserError(
            f"the recorder saw {len(compared)} launches of the self-test, which makes {selftest.launches(architecture)}"
        )
    return f"{len(compared)} launches of known kernels, all bytes as expected"


class _stdout_to:  # noqa: N801 - reads as a verb where it is used
    """Sends what child processes write to stdout, and our own stderr, to a file for a while."""

    def __init__(self, to: int) -> None:
        self.to = to

    def __enter__(self) -> None:
        self.saved = os.dup(1), os.dup(2)
        os.dup2(self.to, 1)
        os.dup2(self.to, 2)

    def __exit__(self, *_: object) -> None:
        for number, saved in zip((1, 2), self.saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)
