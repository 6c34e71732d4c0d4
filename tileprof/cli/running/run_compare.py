"""``tileprof run --compare``: what a policy gains on this GPU, measured, with what was predicted beside it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.cli.running.run_gpu import prepare
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.devices import Device
    from tileprof.policy.format import Policy
    from tileprof.runtime.chain import Chain
    from tileprof.runtime.measuring.stage_times import StageTime
    from tileprof.trace import MemoryRecording

PREDICTED: Final = ("graph", "pdl", "streams")
"""Rows that the simulator's scheduler of the same name predicts; a policy's own waits predict ``cusync``. All rows are
replays of CUDA graphs, so that the GPU issues their launches.
"""


def compare(
    policies: Sequence[Policy], compile_s: float | None = None, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Measure every row on the GPU here and predict what can be predicted; the object that ``--json`` prints.

    All policies must be sound and for the same stages. ``compile_s``: what torch.compile gets for its row; None: no
    such row; ``say`` is told each step. A stage's tile time is calibrated: its kernel alone, measured, over its waves.
    Everything else about the prediction, and so every gain, is modelled. Raises `UserError` without a GPU, and where no
    kernel takes the stages' tiles.
    """
    from tileprof.devices import of_driver  # noqa: PLC0415 - not needed for --help
    from tileprof.runtime.measuring import measure as on_gpu  # noqa: PLC0415 - imports PyTorch and Triton
    from tileprof.runtime.measuring.stage_times import stage_times  # noqa: PLC0415 - as above

    chain = _common_chain(policies)
    device = of_driver(on_gpu.measured_on()["device"])
    ways = on_gpu.runnable(chain)
    rows: list[dict[str, Any]] = []
    expected: dict[str, float] = {}
    stages: list[dict[str, Any]] = []
    if set(on_gpu.TRITON_ROWS) <= set(ways):
        say("compiling Triton's kernels, and timing each stage alone")
        times = stage_times(chain, device)
        say("timing Triton's kernels under every scheduler, beside PyTorch")
        rows += on_gpu.measure(chain, policies, schedulers=on_gpu.TRITON_ROWS)
        expected |= predict(chain, policies, device, times)
        stages = [
            {"stage": name, "us": t.us, "blocks_per_sm": t.blocks_per_sm}
            for name, t in zip(chain.names, times, strict=True)
        ]
    if set(on_gpu.PERSISTENT_ROWS) <= set(ways):
        say("compiling the persistent kernel")
        for policy in policies:
            prepare(policy, schedulers=on_gpu.PERSISTENT_ROWS)
        say("timing the persistent kernel under every scheduler")
        rows += on_gpu.measure(chain, policies, schedulers=on_gpu.PERSISTENT_ROWS, beside_torch=not rows)
        expected |= predict_persistent(policies, device)
    if compile_s is not None:
        say("compiling the stages by torch.compile")
        rows.append(on_gpu.measure_compiled(chain, policies[0], compile_s))
    for row in on_gpu.with_gains(rows):
        if row["row"] in expected and row.get("gain_over") in expected:
            row["predicted_us"] = expected[row["row"]]
            row["predicted_gain"] = 1 - expected[row["row"]] / expected[row["gain_over"]]
            row["residual_points"] = 100 * (row["gain"] - row["predicted_gain"])
    return on_gpu.measured_on() | {"stages": stages, "rows": rows}


def predict_persistent(policies: Sequence[Policy], device: Device) -> dict[str, float]:
    """Return microseconds of the persistent kernel's rows, from its stages alone, measured here: the sum of these in
    stream order, their overlap under each policy.
    """
    from tileprof.runtime.measuring.measure import row_name  # noqa: PLC0415 - as above
    from tileprof.runtime.measuring.stage_times import persistent_stage_us  # noqa: PLC0415 - as above
    from tileprof.runtime.persistent.predict import predicted_us  # noqa: PLC0415 - as above
    from tileprof.runtime.persistent.task_lists import without_waits  # noqa: PLC0415 - as above
    from tileprof.runtime.policy_on_gpu import GpuPipeline  # noqa: PLC0415 - imports PyTorch and Triton

    stage_us, gap_us = persistent_stage_us(policies[0]), device.graph_gap_ns / 1e3
    times = {"persistent-stages": sum(stage_us)}
    for number, policy in enumerate(policies):
        plan = GpuPipeline(policy, schedule="persistent", unchecked=True).plan
        if plan is not None:
            times[row_name("persistent", number, len(policies))] = predicted_us(plan, stage_us, gap_us)
            times.setdefault("persistent-unsynchronised", predicted_us(without_waits(plan), stage_us, gap_us))
    return times


def predict(chain: Chain, policies: Sequence[Policy], device: Device, times: Sequence[StageTime]) -> dict[str, float]:
    """Return microseconds by row, from stages that take ``times`` alone: schedulers by name, policies by `row_name`."""
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.simulate import Simulator, scheduler  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.prediction import Predictor  # noqa: PLC0415 - as above
    from tileprof.runtime.measuring.measure import row_name  # noqa: PLC0415 - as above

    graph = build_graph(expected_recording(chain, device, times))
    launches = range(len(chain.operators))
    simulator, predictor = Simulator(graph), Predictor(graph)
    time_us = {
        name: simulator.run(scheduler(f"{name}:issue_ns={device.graph_issue_ns}")).time_ns / 1e3 for name in PREDICTED
    }
    for number, policy in enumerate(policies):
        time_us[row_name("cusync", number, len(policies))] = predictor(policy, launches).policy_ns / 1e3
    unsynchronised = replace(policies[0], edges=(), semaphores=())
    time_us["unsynchronised"] = predictor(unsynchronised, launches).policy_ns / 1e3
    return time_us


def expected_recording(chain: Chain, device: Device, times: Sequence[StageTime]) -> MemoryRecording:
    """Return the recording that the chain's own kernels would leave: what their tiles touch, and how long they live."""
    from tileprof.cli.running.touched_boxes import ALIGNED_BYTES, boxes_by_slot  # noqa: PLC0415 - as above
    from tileprof.trace import MemoryRecording  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace.columns import buffer_row  # noqa: PLC0415 - as above
    from tileprof.trace.footprint import Footprint, Launch  # noqa: PLC0415 - as above

    numbers = {name: number for number, name in enumerate(chain.tensors())}
    buffers: list[dict[str, Any]] = []
    footprints: list[Footprint] = []
    launches = []
    base = 1 << 20
    for name, views in chain.tensors().items():
        size = max(v.elements for v in views) * views[0].item_bytes
        kind, allocated_at = ("input", -1) if name in chain.inputs() else ("activation", 0)
        buffers.append(
            buffer_row(
                len(buffers),
                allocated_at=allocated_at,
                base=base,
                size=size,
                kind=kind,
                name=name,
                dtype=views[0].dtype,
            )
        )
        base += -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
    begin_ns = 0
    for name, operator, time in zip(chain.names, chain.operators, times, strict=True):
        touches = operator.touches(numbers)
        operands, boxes = boxes_by_slot(touches)
        waves = -(-operator.tiles // (device.sms * time.blocks_per_sm))
        alone_ns = max(1e3 * time.us - device.graph_gap_ns, 1.0)
        block = np.array([operator.place(tile) for tile in range(operator.tiles)], np.int32)
        launches.append(
            Launch(
                footprint=len(footprints),
                operands=operands,
                kernel=name,
                grid=operator.grid,
                block=(time.threads, 1, 1),
                duration_ns=round(alone_ns),
                timing="modelled",
                coverage="exact",
                begin_ns=begin_ns,
                registers=time.registers,
                shared_bytes=time.shared_bytes,
                blocks_per_sm=time.blocks_per_sm,
            )
        )
        footprints.append(Footprint(block, boxes, np.full(operator.tiles, alone_ns / waves)))
        begin_ns += round(1e3 * time.us)
    return MemoryRecording("chain", device, buffers=buffers, footprints=footprints, launches=launches, recorder="model")


def print_table(result: dict[str, Any]) -> None:
    """The rows for a reader."""
    print(
        f"{result['device']}, driver {result['driver']}, CUDA {result['cuda']}, PyTorch {result['torch']}, Triton "
        f"{result['triton']}, {result['date']}"
    )
    print(
        f"{result['repeats']} replays of a CUDA graph each, weights rotated out of L2, clocks as found; roof "
        f"{result['roof']}"
    )
    print(f"{'':32}{'us':>9}{'10-90%':>18}{'x roof':>8}{'gain':>8}{'predicted':>11}{'residual':>10}  over")
    for row in result["rows"]:
        if "us" not in row:
            print(f"{row['row']:32}{row['said']}")
            continue
        spread = f"{row['us_10']:.1f} to {row['us_90']:.1f}"
        expected = f"{100 * row['predicted_gain']:.1f}%" if "predicted_gain" in row else ""
        residual = f"{row['residual_points']:+.1f}" if "residual_points" in row else ""
        gain = f"{100 * row['gain']:.1f}%" if "gain" in row else ""
        wrong = "" if row["correct"] else "  wrong on purpose: timing only"
        print(
            f"{row['row']:32}{row['us']:9.2f}{spread:>18}{row['over_roof']:8.2f}{gain:>8}{expected:>11}{residual:>10} "
            f" {row.get('gain_over', '')}{wrong}"
        )
    print(
        "gain: over the row named last, the same kernels in stream order in a graph. predicted: tile times calibrated "
        "on each stage alone, the rest "
        "modelled; residual: measured less predicted, in points."
    )


def write_csv(result: dict[str, Any], path: Path, *, force: bool) -> None:
    """The rows as CSV; raises `UserError` rather than overwrite."""
    names = list(dict.fromkeys(key for row in result["rows"] for key in row))
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(result["rows"])
    except FileExistsError:
        raise UserError(f"{path} exists; choose another name or give --force") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def report(result: dict[str, Any], *, as_json: bool) -> None:
    """Print what `compare` found."""
    if as_json:
        json.dump(result, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_table(result)


def _common_chain(policies: Sequence[Policy]) -> Chain:
    from tileprof.runtime.chain import Chain  # noqa: PLC0415 - imports PyTorch

    chains = [Chain.of_policy(policy) for policy in policies]
    for number, chain in enumerate(chains[1:], start=1):
        if chain.operators != chains[0].operators:
            raise UserError(
                f"policy {number + 1} has other stages than the first; --compare takes policies of one chain"
            )
    memory = chains[0].memory()
    for number, policy in enumerate(policies, start=1):
        if not chains[0].verify(policy, memory).sound:
            raise UserError(
                f"policy {number} does not wait for everything that its tiles need, and its time would be that of "
                "wrong results; "
                "`tileprof run POLICY`, without --compare, names the races"
            )
    return chains[0]
