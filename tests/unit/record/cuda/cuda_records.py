"""A process's raw records, built by hand."""

import numpy as np

from tileprof.devices import get
from tileprof.record.cuda.records import raw

H200 = get("H200")
ALLOC = {"e": "alloc", "address": 0x100000, "bytes": 0x10000, "device": 0, "flags": 0}
TENSOR = {"e": "tensor", "address": 0x100000, "bytes": 500, "kind": "activation"}
WINDOW = 0x100000 // 1024  # of 32 granules of 32 bytes

KERNEL = {
    "e": "kernel", "id": 0, "name": "k(int*)", "symbol": "_Z1kPi", "scanned": 1, "fingerprint": "00", "registers": 32,
    "static_shared": 0, "parameters": [528, 64], "tensor_load": 0, "tensor_store": 0, "tensor_reduce": 0,
}  # fmt: skip


def launch(
    number, *, kernel=0, grid=(2, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), graph=-1, generation=0, ordinal=None
):
    return {
        "e": "launch", "launch": number, "kernel": kernel, "grid": list(grid), "block": list(block),
        "cluster": list(cluster), "stream": "0x1", "context": 0, "device": 0, "graph": graph,
        "generation": generation, "ordinal": number - 1 if ordinal is None else ordinal, "t": number * 1000,
    }  # fmt: skip


def entry(kind, low, block, number, payload, generation=0):
    key = kind << raw.KIND_SHIFT | generation << raw.GENERATION_SHIFT | low
    return (key, block, number, payload)


def access(number, block, window, *, read=0, write=0, atomic=0, first=100, generation=0):
    return entry(raw.ACCESS, window, block, number, (read, write, atomic, first), generation)


def block_record(number, block, begin, end, *, sm=3, generation=0):
    return entry(raw.BLOCK, sm, block, number, (begin, 0, end, 0), generation)


def entry_events(events, entries):
    """Return entries of blocks that have no records: they entered, at unknown times."""
    have = {(number, block) for key, block, number, _ in entries if key >> raw.KIND_SHIFT == raw.BLOCK}
    own = [e for e in events if e["e"] == "launch" and e["graph"] < 0]
    grids = {e["launch"]: e["grid"][0] * e["grid"][1] * e["grid"][2] for e in own}
    return [block_record(n, b, 1, 0) for n, blocks in grids.items() for b in range(blocks) if (n, b) not in have]


def process(tmp_path, events, entries, *, ended=True, granule=32, whole=True):
    entries = [*entries, *(entry_events(events, entries) if whole else [])]
    start = {"e": "start", "version": 1, "pid": 1, "pass": "accesses", "granule": granule, "arena": 1 << 20}
    events = [start, *events, *([{"e": "end", "t": 0}] if ended else [])]
    return raw.grouped(tmp_path, events, np.array(entries, raw.ENTRY))
