"""Logs of Accel-Sim's tracer become traces: the bytes are those of the log, and malformed logs are refused."""

import lzma
from random import Random

import numpy as np
import pytest

from tests.support.accel_sim_logs import access, kernel_text, random_accesses, write_logs
from tileprof.analysis import build_graph
from tileprof.cli.entry import main
from tileprof.errors import UserError
from tileprof.record.accel_sim import import_logs
from tileprof.record.accel_sim.instructions import parse
from tileprof.trace import load, validate

ALPHA, BETA = 0x7EFE7B600000, 0x7EFE9B600000
EXIT = "0020 ffffffff 0 EXIT 0 0 "


def bytes_of(trace, launch):
    """Return ``{(tile, mode): absolute bytes}`` of a launch, expanded box by box."""
    launches, operands, accesses, buffers = (
        trace.columns(name) for name in ("launches", "operands", "accesses", "buffers")
    )
    bound = operands["launch"] == launch
    origin = buffers["base"][operands["buffer"][bound]] + operands["offset"][bound]
    true_bytes = {}
    for n in np.flatnonzero(accesses["footprint"] == launches["footprint"][launch]):
        box = {name: int(accesses[name][n]) for name in accesses if name not in ("first", "last")}
        for i in range(box["count_0"]):
            for j in range(box["count_1"]):
                at = int(origin[box["operand"]]) + box["offset"] + i * box["stride_0"] + j * box["stride_1"]
                true_bytes.setdefault((box["tile"], box["mode"]), set()).update(range(at, at + box["length"]))
    return true_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_trace_holds_the_bytes_of_the_log(tmp_path, seed):
    random, kernels, expected = Random(seed), [], []
    for _ in range(2):
        blocks, true_bytes = {}, {}
        for x in range(3):
            for y in range(2):
                warps = []
                for _ in range(2):
                    lines = [EXIT]
                    for _ in range(random.randrange(5)):
                        line, mode, bytes_ = random_accesses(random, random.choice([ALPHA, BETA]), 1 << 12)
                        lines.insert(0, line)
                        true_bytes.setdefault((x + 3 * y, mode), set()).update(bytes_)
                    warps.append(lines)
                blocks[x, y, 0] = warps
        kernels.append(kernel_text(blocks))
        expected.append(true_bytes)
    result = import_logs(write_logs(tmp_path / "logs", kernels, [(ALPHA, 64), (ALPHA + 1024, 64)]), tmp_path / "t")
    trace = load(result.path)
    assert not list(validate(trace))
    assert [bytes_of(trace, n) for n in range(2)] == expected
    assert trace.columns("launches")["coverage"].tolist() == [0, 0]


def copying(source, target, blocks=4, **header):
    """Return a kernel whose block n copies 128 bytes."""
    return kernel_text(
        {
            (n, 0, 0): [
                [
                    access("LDG.E", 0xFFFFFFFF, [source + 128 * n, source + 128 * n + 4], 1),
                    access("STG.E", 0xFFFFFFFF, [target + 128 * n, target + 128 * n + 4], 1),
                    EXIT,
                ]
            ]
            for n in range(blocks)
        },
        **header,
    )


def test_dependencies_of_a_log_are_between_blocks(tmp_path, capsys):
    middle, end = ALPHA + (1 << 20), BETA
    logs = write_logs(
        tmp_path / "logs", [copying(ALPHA, middle, stream=7), copying(middle, end, stream=7)], [(ALPHA, 512)]
    )
    assert main(["record", "--accel-sim", str(logs), "-o", str(tmp_path / "chain"), "--device", "V100"]) == 0
    assert "2 launches of 8 tiles" in capsys.readouterr().err
    trace = load(tmp_path / "chain.tileprof")
    launches, buffers = trace.columns("launches"), trace.columns("buffers")
    assert launches["footprint"].tolist() == [0, 0]
    assert launches["stream"].tolist() == [0, 0]
    assert buffers["base"].tolist() == [ALPHA, middle, end]
    assert trace.manifest["device"]["name"] == "V100"
    edges = build_graph(trace).edges
    assert edges["hazard"].tolist() == ["RAW"] * 4
    assert sorted(zip(edges["producer_tile"], edges["consumer_tile"], strict=True)) == [(n, n) for n in range(4)]


def test_compressed_logs_and_folders_are_read(tmp_path):
    folder = write_logs(tmp_path / "logs", [copying(ALPHA, BETA)]).parent
    plain = folder / "kernel-1.traceg"
    (folder / "kernel-1.traceg.xz").write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    (folder / "kernelslist.g").write_text("kernel-1.traceg.xz\n")
    assert import_logs(folder, tmp_path / "t").tiles == 4


def test_old_logs_name_the_block_in_every_line(tmp_path):
    line = access("STG.E", 1, [ALPHA], prefix="0 0 0 0 ")
    logs = write_logs(tmp_path / "logs", [kernel_text({(0, 0, 0): [[line]]}, version=2)])
    assert bytes_of(load(import_logs(logs, tmp_path / "t").path), 0) == {(0, 1): set(range(ALPHA, ALPHA + 4))}


def test_shared_and_local_memory_is_left_out(tmp_path):
    lines = [
        access("LD.E", 3, [0x7EFEB0000010, ALPHA]),
        access("ST.E", 1, [0x7EFEB2000010]),
        access("LDS", 1, [16]),
        access("STL.64", 1, [32]),
    ]
    logs = write_logs(tmp_path / "logs", [kernel_text({(0, 0, 0): [lines]})])
    assert bytes_of(load(import_logs(logs, tmp_path / "t").path), 0) == {(0, 0): set(range(ALPHA, ALPHA + 4))}


@pytest.mark.parametrize(
    ("blocks", "grid", "why"),
    [
        ({(0, 0, 0): [[access("STG.E", 1, [ALPHA])]]}, (2, 1, 1), "1 blocks are not in the log"),
        ({(0, 0, 0): [[access("STG.E", 1, [ALPHA]), "0010 00000001 0 UTMALDG.2D 0 0 "]]}, None, "no addresses of UTM"),
    ],
)
def test_what_a_log_cannot_show_touches_everything(tmp_path, blocks, grid, why):
    trace = load(import_logs(write_logs(tmp_path / "logs", [kernel_text(blocks, grid=grid)]), tmp_path / "t").path)
    all_bytes = set(range(ALPHA, ALPHA + 4))
    tiles = grid[0] if grid else 1
    assert bytes_of(trace, 0) == {(tile, mode): all_bytes for tile in range(tiles) for mode in (0, 1)}
    assert trace.columns("launches")["coverage"].tolist() == [2]
    assert why in trace.columns("launches")["note"][0]


def test_an_unknown_opcode_reads_and_writes(tmp_path):
    logs = write_logs(tmp_path / "logs", [kernel_text({(0, 0, 0): [[access("FROB.E.64", 1, [ALPHA])]]})])
    trace = load(import_logs(logs, tmp_path / "t").path)
    all_bytes = set(range(ALPHA, ALPHA + 8))
    assert bytes_of(trace, 0) == {(0, 0): all_bytes, (0, 1): all_bytes}
    assert "FROB" in trace.columns("launches")["note"][0]


def test_arithmetic_is_counted():
    assert parse(b"0010 0000000f 1 R1 FFMA 3 R1 R2 R3 0 ", 0).flops == 8
    assert parse(b"0010 ffffffff 1 R1 HMMA.16816.F32 3 R1 R2 R3 0 ", 0).tensor_flops == 4096
    assert parse(b"0010 ffffffff 1 R1 MOV 1 R1 0 ", 0).flops == 0


GOOD = copying(ALPHA, BETA, blocks=1)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("-grid dim = (1,1,1)", "-grid dim = (1,1)", "expected three extents"),
        ("-grid dim = (1,1,1)", "-grid dim = (99999,99999,9)", "at most"),
        ("-grid dim = (1,1,1)\n", "", "both are needed"),
        ("-nregs = 32", "-nregs = many", "is not a number"),
        ("-kernel id", "kernel id", "a log begins with"),
        ("thread block = 0,0,0", "thread block = 1,0,0", "of grid (1, 1, 1)"),
        ("warp = 0", "warp = x", "is not a `warp = n`"),
        ("insts = 3", "insts = 4", "fewer than it says"),
        ("insts = 3", "insts = 2", "neither an instruction"),
        ("#END_TB", "", "ends inside a thread block"),
        ("#END_TB\n", "#END_TB\n0010 ffffffff 0 EXIT 0 0\n", "outside of a thread block"),
        ("ffffffff 1 R4 LDG", "fffffffff 1 R4 LDG", "is no mask"),
        ("ffffffff 1 R4 LDG", "fff0ffff 1 R4 LDG", "no neighbours"),
        ("LDG.E 2 R2 R3 4 1", "LDG.E 2 R2 R3 4 3", "is no address mode"),
        ("LDG.E 2 R2 R3 4 1", "LDG.E 2 R2 R3 4 0", "ends too early"),
        ("LDG.E 2 R2 R3 4 1", "LDG.E x R2 R3 4 1", "is no number of sources"),
        (f"0x{ALPHA:x} 4", f"0x{ALPHA:x}", "ends too early"),
        (f"0x{ALPHA:x} 4", "0x10 -4", "leave the address space"),
        (f"0x{ALPHA:x} 4", f"0x{ALPHA:x} {1 << 61}", "is not a difference"),
        ("0020 ffffffff 0 EXIT 0 0 ", "0020 " + "f" * 70_000, "a line of more than"),
    ],
)
def test_a_malformed_log_is_refused_with_its_line(tmp_path, old, new, why):
    assert old in GOOD
    logs = write_logs(tmp_path / "logs", [GOOD.replace(old, new, 1)])
    with pytest.raises(UserError) as refusal:
        import_logs(logs, tmp_path / "t")
    assert "kernel-1.traceg, line " in str(refusal.value)
    assert why in str(refusal.value)
    assert not list(tmp_path.glob("t.tileprof*"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no kernel"),
        ("kernel-1.trace\n", "is not a file kernel-N.traceg"),
        ("kernel/../../secret.traceg\n", "beside the list"),
        ("kernel-9.traceg\n", "it is not a file"),
        ("MemcpyHtoD,x,4\nkernel-1.traceg\n", "is not MemcpyHtoD"),
        ("what is this\n", "neither a copy nor a kernel"),
    ],
)
def test_a_malformed_list_is_refused(tmp_path, text, why):
    logs = write_logs(tmp_path / "logs", [GOOD])
    logs.write_text(text)
    with pytest.raises(UserError, match=why):
        import_logs(logs, tmp_path / "t")


def test_a_broken_archive_is_refused(tmp_path):
    logs = write_logs(tmp_path / "logs", [GOOD])
    packed = lzma.compress(GOOD.encode())
    for broken_bytes in (packed[:-20], b"no archive"):
        (logs.parent / "kernel-1.traceg.xz").write_bytes(broken_bytes)
        logs.write_text("kernel-1.traceg.xz\n")
        with pytest.raises(UserError, match="cannot read"):
            import_logs(logs, tmp_path / "t")


def test_logs_take_no_program(tmp_path, capsys):
    logs = write_logs(tmp_path / "logs", [GOOD])
    assert main(["record", "--accel-sim", str(logs), "python", "x.py"]) == 2
    assert "runs no program: leave out python x.py" in capsys.readouterr().err
    assert main(["record", "--fake", "--accel-sim", str(logs)]) == 2
    assert "leave out --fake" in capsys.readouterr().err
