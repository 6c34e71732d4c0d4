"""Predicted against published gains of cuSync on the GPT-3 MLP (V100 and A100), point by point.

Times: those of the cuSync repository. A launch's tile time is its kernel's published stream-order time over its waves, so
nothing is fitted to a gain. Grids follow from the repository's tile shapes and split-k; residency from shared memory
(V100), and from tile size on the A100, where registers bind. RowSync waits for all tiles of the rows at entry, TileSync for
each tile where the main loop first needs it. Posts, polls and waits cost nothing here.
"""

import sys
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
from measuring import header, table

sys.path.insert(0, str(Path(__file__).parents[2]))  # the builders of the unit tests

from tests.unit.analysis.fakes import block, footprint, graph, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.devices import get

DATA = Path(__file__).parents[1] / "data"
DEVICES = {"v100": "V100", "a100": "A100-80GB"}


def main():
    header("cuSync's GPT-3 MLP, published and predicted gain over stream order, %")
    times = (
        pd.read_csv(DATA / "cusync_published_times.csv")
        .query("kind == 'mlp'")
        .set_index(["arch", "policy", "m"])
        .sort_index()
    )
    shapes = pd.read_csv(DATA / "cusync_tile_shapes.csv").set_index(["arch", "op", "m"])
    for arch in DEVICES:
        for policy in ("rowsync", "tilesync"):
            rows = []
            for m, point in times.loc[arch, policy].iterrows():
                base = times.loc[arch, "baseline", m].squeeze()
                gemms = [shapes.loc[arch, op, m].squeeze() for op in ("gemm1_up", "gemm2_down")]
                published = 100 * (1 - point["time_us"] / base["time_us"])
                rows.append((m, published, predicted(arch, policy, m, gemms, (base["k1_us"], base["k2_us"]))))
            _, seen, said = np.array(rows).T
            print(
                f"{arch} {policy}: correlation {np.corrcoef(seen, said)[0, 1]:.2f}, mean error {np.abs(seen - said).mean():.1f} points\n"
            )
            table(["tokens", "published", "predicted"], [(m, f"{a:.1f}", f"{b:.1f}") for m, a, b in rows])


def predicted(arch, policy, m, gemms, kernel_us):
    device = get(DEVICES[arch])
    resident = [blocks_per_sm(device, gemm) for gemm in gemms]
    tiles = [grid(m, gemm, gemm[f"split_k_{policy}"]) for gemm in gemms]
    lives = []
    for gemm, us, blocks in zip(gemms, kernel_us, resident, strict=True):
        split = gemm["split_k_baseline"]
        waves = ceil(len(grid(m, gemm, split)) / (device.sms * blocks))
        lives.append(1e3 * us / waves * split / gemm[f"split_k_{policy}"])
    g = graph([len(t) for t in tiles], [(0, 1, relation(policy, m, gemms, tiles))])
    launches = [
        {"footprint": i, "timing": "modelled", "blocks_per_sm": b, "block_x": 128} for i, b in enumerate(resident)
    ]
    g.trace = trace(launches, {i: footprint(len(tiles[i]), duration_ns=lives[i]) for i in (0, 1)}, device=device)
    time_ns = Simulator(g).run(scheduler("cusync:post_ns=0,poll_ns=0")).time_ns
    return 100 * (1 - time_ns / 1e3 / sum(kernel_us))


def grid(m, gemm, split):
    """(row, column, split) of tiles, a row after the other."""
    rows, columns = ceil(m / gemm["tile_m"]), ceil(gemm["n"] / gemm["tile_n"])
    return [(y, x, z) for y in range(rows) for x in range(columns) for z in range(int(split))]


def blocks_per_sm(device, gemm):
    shared = 2 * gemm["stages"] * (gemm["tile_m"] + gemm["tile_n"]) * gemm["tile_k"]
    by_registers = 1 if device.sms == 108 and gemm["tile_m"] * gemm["tile_n"] > 160 * 128 else 2
    return max(1, min(by_registers, device.shared_bytes_per_sm // shared))


def relation(policy, m, gemms, tiles):
    up, down = gemms
    place = {tile: i for i, tile in enumerate(tiles[0])}
    chunk = down["k"] / down[f"split_k_{policy}"]
    sets, number = [], {}
    for y, _, z in tiles[1]:
        if (y, z) in number:
            continue
        first_row, rows = y * down["tile_m"] // up["tile_m"], ceil(m / up["tile_m"])
        parents = []
        for row, column, split in tiles[0]:
            needed = z * chunk < (column + 1) * up["tile_n"] and column * up["tile_n"] < (z + 1) * chunk
            in_rows = first_row <= row < min(rows, ceil((y + 1) * down["tile_m"] / up["tile_m"]))
            if in_rows and (needed or policy == "rowsync"):
                first = max(0.0, (column * up["tile_n"] - z * chunk) / chunk) if policy == "tilesync" else 0.0
                parents.append((place[row, column, split], 1.0, first))
        number[y, z] = len(sets)
        sets.append(sorted(parents))
    return block(sets, [number[y, z] for y, _, z in tiles[1]])


if __name__ == "__main__":
    main()
