# ruff: noqa: INP001, PLC0415, PTH103, PTH118, PTH123 - runs inside other programs: a script that imports little, and
# late
"""The time pass, inside the recorded program: what CUPTI says about every kernel, as JSON lines.

Writes ``$TILEPROF_RAW/process-<pid>/kernels.jsonl``. CUPTI and Compute Sanitizer do not share a process, so this is
a pass of its own.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

_BUFFER_BYTES = 8 << 20
_rows: list[dict[str, Any]] = []


def start() -> None:
    """Ask CUPTI for kernel activities; what they say is written when the program ends."""
    folder = os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}")
    os.makedirs(folder, exist_ok=True)
    try:
        from cupti import cupti

        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), _write_activities)
        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
    except Exception as error:  # noqa: BLE001 - the program continues whatever CUPTI says
        with open(os.path.join(folder, "failed.txt"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
        return
    atexit.register(_finish, cupti, folder)


def _write_activities(activities: list[Any]) -> None:
    for a in activities:
        row = {
            "name": a.name, "grid": [a.grid_x, a.grid_y, a.grid_z], "block": [a.block_x, a.block_y, a.block_z],
            "begin": a.start, "end": a.end, "registers": a.registers_per_thread, "device": a.device_id,
            "shared": a.static_shared_memory + a.dynamic_shared_memory, "correlation": a.correlation_id,
            "graph": a.graph_id, "stream": a.stream_id,
        }  # fmt: skip
        _rows.append(row)


def _finish(cupti: Any, folder: str) -> None:
    cupti.activity_flush_all(1)
    with open(os.path.join(folder, "kernels.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows)
