"""``manifest.json``: what a trace says about itself, from the moment recording begins.

::

    {"format": "tileprof trace", "version": 1, "complete": true, "tileprof": "0.1.0",
     "created": "2026-11-20T06:00:00+00:00", "recorder": "model", "command": ["infer.py", "--batch", "1"],
     "libraries": {"python": "3.11.9", "torch": "2.13.0"}, "device": {"name": "H200", ...}, "granule": 1,
     "exit_code": 0, "reason": "", "rows": {"launches": 96, ...}, "coverage": {"exact": 90, ...}, "notes": []}

While a recording runs, ``writer`` holds its process id and host; afterwards it is null. ``granule`` is the
number of bytes the recorder worked in (1: byte-exact).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tileprof.errors import TraceError
from tileprof.nesting import parse_json
from tileprof.trace.schema import FORMAT_VERSION

FILE_NAME: Final = "manifest.json"
_FORMAT: Final = "tileprof trace"
_LIMIT_BYTES: Final = 16 << 20  # ours are kilobytes; a larger one is not ours
_LIBRARIES: Final[tuple[str, ...]] = ("numpy", "pandas", "pyarrow", "torch", "transformers", "triton")


def initial(*, recorder: str, command: list[str], device: dict[str, Any], granule: int) -> dict[str, Any]:
    """Return the manifest of a recording that begins now."""
    return {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "complete": False,
        "tileprof": _version("tileprof"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "recorder": recorder,
        "command": command,
        "libraries": libraries(),
        "device": device,
        "granule": granule,
        "exit_code": None,
        "reason": "",
        "rows": {},
        "coverage": {},
        "notes": [],
        "writer": {"pid": os.getpid(), "host": socket.gethostname()},
    }


def libraries() -> dict[str, str]:
    """Return versions of Python and of the libraries that are imported already; imports nothing."""
    versions = {name: _version(name) for name in _LIBRARIES if name in sys.modules}
    return {"python": ".".join(map(str, sys.version_info[:3])), **versions}


@cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest in one step. Raises OSError."""
    temporary = folder / f".{FILE_NAME}.tmp"
    try:
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        temporary.replace(folder / FILE_NAME)
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Any]:
    """Return the checked manifest of a trace folder.

    Raises TraceError when there is none, when it is not ours, of another version, or of a wrong shape.
    """
    path = folder / FILE_NAME
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise TraceError(f"{path} is larger than {_LIMIT_BYTES} bytes: {folder} is not a trace")
        if path.is_symlink() or not path.is_file():
            raise TraceError(f"{path} is a link or no file: {folder} is not a trace")
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{folder} is not a trace: it has no {FILE_NAME}") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{path} is not valid JSON ({error}): the trace is damaged, record it again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise TraceError(f"{folder} is not a trace: {FILE_NAME} does not say {_FORMAT!r}")
    _check_version(folder, manifest.get("version"))
    for key, sound in _SOUND.items():
        if not sound(manifest.get(key)):
            raise TraceError(f"{path}: {key} is {manifest.get(key)!r:.80}: the trace is damaged, record it again")
    return manifest


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(_whole(count, 0, _MOST) for count in value.values())


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_MOST: Final = 2**63 - 1
_SOUND: Final[dict[str, Callable[[Any], bool]]] = {
    "complete": lambda value: isinstance(value, bool),
    "recorder": lambda value: isinstance(value, str),
    "command": _words,
    "device": lambda value: isinstance(value, dict),
    "granule": lambda value: _whole(value, 1, 1 << 20),
    "rows": lambda value: isinstance(value, dict),
    "notes": _words,
    "exit_code": lambda value: value is None or _whole(value, -_MOST, _MOST),
    "reason": lambda value: value is None or isinstance(value, str),
    "coverage": lambda value: value is None or _counts(value),
    "libraries": lambda value: value is None or isinstance(value, dict),
}
"""Checks of each key's value; keys that may be missing have none."""


def _check_version(folder: Path, version: Any) -> None:
    if version == FORMAT_VERSION and isinstance(version, int):
        return
    newer = isinstance(version, int) and version > FORMAT_VERSION
    advice = "use a newer tileprof" if newer else "record it again"
    raise TraceError(
        f"{folder} has trace format {version!r:.40}, this tileprof ({_version('tileprof')}) reads {FORMAT_VERSION}: "
        f"{advice}"
    )


def is_trace(folder: Path) -> bool:
    """Return whether a folder looks like a trace of any version: what ``force`` may replace."""
    path = folder / FILE_NAME
    try:
        if folder.is_symlink() or path.stat().st_size > _LIMIT_BYTES:
            return False
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == _FORMAT


def live_writer(folder: Path) -> int | None:
    """Return the process that is writing this trace now, if it still runs."""
    try:
        writer = parse_json((folder / FILE_NAME).read_text(encoding="utf-8"))["writer"]
        pid = writer["pid"]
        same_host = writer["host"] == socket.gethostname()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(pid, int) or pid <= 0:
        return None
    if not same_host:
        return pid  # cannot be asked from here; taking it for dead could destroy it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (PermissionError, OverflowError):
        return pid
    return None if _has_ended(pid) else pid


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended and its parent has not asked how: Linux keeps its number until then.

    False where the system does not say.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] in (["Z"], ["X"])  # behind the name, which may hold anything
