"""The object that `tileprof record --json` prints when the recording of a trace has ended."""

from __future__ import annotations

import json
from pathlib import Path

from tileprof.shell_words import shell_word
from tileprof.trace import manifest


def ended_json(path: Path, *, shown: Path | None = None) -> str:
    """Return one line: where the trace is (``shown`` where it is named otherwise), what it holds, and what was
    not covered.
    """
    about = manifest.read(path)
    rows = about["rows"]
    return json.dumps(
        {
            "schema": "tileprof record",
            "version": 1,
            "trace": str(shown or path),
            "recorder": about["recorder"],
            "complete": about["complete"],
            "reason": about["reason"],
            "exit_code": about["exit_code"],
            "launches": rows["launches"],
            "coverage": about["coverage"],
            "notes": about["notes"],
            "next": f"tileprof report {shell_word(shown or path)}",
        }
    )
