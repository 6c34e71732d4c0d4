"""The CUDA recorder: every kernel of an unmodified program on a real GPU, through binary instrumentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileprof.record import Options
    from tileprof.record.cuda.settings import Settings


def record(options: Options, settings: Settings | None = None) -> int:
    """Run ``options.program`` on this machine's GPU and write its trace; the program's exit code."""
    from tileprof.record.cuda import recording  # noqa: PLC0415 - only recording needs it, and it is heavy

    return recording.record(options, settings)


def has_gpu() -> bool:
    """Return whether NVIDIA's driver shows a GPU here."""
    from tileprof.errors import UserError  # noqa: PLC0415 - as above
    from tileprof.record.cuda.installation import gpu  # noqa: PLC0415

    try:
        return bool(gpu.gpus())
    except UserError:
        return False


def missing() -> str:
    """Return what this machine lacks of what recording needs, "" for nothing.

    Looks, but builds and runs nothing: `doctor` does.
    """
    from tileprof.errors import UserError  # noqa: PLC0415 - as above
    from tileprof.record.cuda import recorded_run  # noqa: PLC0415
    from tileprof.record.cuda.installation import gpu, locate  # noqa: PLC0415

    try:
        gpu.supported(gpu.gpus()[0])
        recorded_run.refuse_taken()
        locate.sanitizer(), locate.nvcc(), locate.cuda_include(), locate.host_compiler()
    except UserError as error:
        return str(error)
    return ""
