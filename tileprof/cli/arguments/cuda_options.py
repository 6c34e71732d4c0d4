"""The options of ``tileprof record`` that only the CUDA recorder understands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tileprof.record.cuda.settings import Settings

DEFAULT_PASSES = "accesses,blocks,time"

NAMES: Final = (
    "passes", "granule", "arena", "kernel", "exclude", "include", "wait", "capture", "patch", "no_replay", "no_names",
    "check_writes", "filters", "keep_raw",
)  # fmt: skip
"""The options that `add_options` adds, as argparse spells them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them, as a group of their own."""
    add = parser.add_argument_group("recording on a real GPU").add_argument
    add(
        "--passes", default=DEFAULT_PASSES, metavar="LIST",
        help="runs of the program: accesses (what blocks touch), blocks (when and where they run), time (durations); "
        "default: all; with --filters also filters (times of blocks that fill filters and record nothing)",
    )  # fmt: skip
    add("--granule", type=int, default=32, metavar="BYTES", help="resolution of recorded addresses (default: 32)")
    add("--arena", type=int, default=2048, metavar="MIB", help="GPU memory for records (default: 2048)")
    add("--kernel", metavar="REGEX", help="record only kernels whose name matches")
    add("--exclude", metavar="REGEX", help="leave out kernels whose name matches, and do not wait for them")
    add(
        "--include", metavar="REGEX",
        help="also record kernels that are left out by default because they spin until another GPU or process "
             "releases them, such as NCCL's",
    )  # fmt: skip
    add(
        "--wait", type=float, default=60.0, metavar="SECONDS",
        help="time to wait for a launch before it is treated as one that spins (default: 60); the program is "
             "ended after ten times as long without progress",
    )  # fmt: skip
    add("--capture", action="store_true", help="record only inside tileprof.capture() or cudaProfilerStart and Stop")
    add(
        "--patch", default="need", metavar="WHEN",
        help="need (default): patch code only where kernels are launched whose accesses do not follow from machine "
             "code and parameters; load: patch all code when it is loaded; range: with --capture or --nvtx, patch it "
             "only while they select launches",
    )  # fmt: skip
    add("--no-replay", action="store_true", help="never repeat a launch to learn which tiles store through tensor maps")
    add(
        "--no-names",
        action="store_true",
        help="install no hooks in PyTorch: the trace has no names of operators, modules and tensors",
    )
    add(
        "--check-writes",
        action="store_true",
        help="compare memory before and after every launch with the recorded writes; slow",
    )
    add(
        "--filters", metavar="BITS[,HASHES[,GRANULE]]",
        help="let blocks insert what they touch into Bloom filters in GPU memory, such as 8192,2,512; report then says "
             "what they answer, and what inserting costs",
    )  # fmt: skip
    add("--keep-raw", type=Path, metavar="FOLDER", help="keep the raw records in FOLDER")


def settings(options: argparse.Namespace) -> Settings:
    """Return the recorder's settings. Raises `UserError` for values that cannot be."""
    from tileprof.record.cuda.settings import Settings  # noqa: PLC0415 - keeps --help fast
    from tileprof.record.filter_settings import FilterSettings  # noqa: PLC0415 - as above

    passes = tuple(word for word in options.passes.split(",") if word)
    if options.filters is not None and options.passes == DEFAULT_PASSES:
        passes += ("filters",)
    return Settings(
        passes=passes,
        granule=options.granule,
        arena_bytes=options.arena << 20,
        replay=not options.no_replay,
        hooks=not options.no_names,
        verify=options.check_writes,
        kernel=options.kernel,
        exclude=options.exclude,
        include=options.include,
        wait_s=options.wait,
        capture_only=options.capture,
        nvtx=options.nvtx,
        patch=options.patch,
        raw=options.keep_raw,
        filters=FilterSettings.parse(options.filters) if options.filters is not None else None,
    )
