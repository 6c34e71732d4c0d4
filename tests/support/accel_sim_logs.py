"""Writes logs in Accel-Sim's format for tests: instructions of warps, with addresses in every form that the format
has.
"""

from itertools import pairwise
from pathlib import Path
from random import Random

HEADER = """-kernel name = {name}
-kernel id = 1
-grid dim = ({grid[0]},{grid[1]},{grid[2]})
-block dim = (64,1,1)
-shmem = 1024
-nregs = 32
-binary version = 70
-cuda stream id = {stream}
-shmem base_addr = 0x00007efeb0000000
-local mem base_addr = 0x00007efeb2000000
-nvbit version = 1.5
-accelsim tracer version = {version}

#traces format = PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [adrrescompress?] [mem_addresses]

"""


def access(opcode, mask, addresses, form=0, prefix=""):
    """Return a line of a log. ``addresses`` has one entry per active thread, in the form of mode 0, 1 or 2."""
    if form == 0:
        words = [f"0x{a:016x}" for a in addresses]
    elif form == 1:
        words = [f"0x{addresses[0]:x}", str(addresses[1] - addresses[0] if len(addresses) > 1 else 0)]
    else:
        words = [f"0x{addresses[0]:x}", *(str(b - a) for a, b in pairwise(addresses))]
    return f"{prefix}0010 {mask:08x} 1 R4 {opcode} 2 R2 R3 4 {form} {' '.join(words)} "


def block_text(block, warps):
    """Return the section of a block. Each warp is a list of lines."""
    text = ["", "#BEGIN_TB", "", "thread block = {},{},{}".format(*block)]
    for number, lines in enumerate(warps):
        text += ["", f"warp = {number}", f"insts = {len(lines)}", *lines]
    return "\n".join([*text, "", "#END_TB", ""])


def kernel_text(blocks, *, name="kernel", grid=None, version=3, stream=0):
    """Return a whole log of ``{(x, y, z): warps}``."""
    grid = grid or tuple(max(b[axis] for b in blocks) + 1 for axis in range(3))
    head = HEADER.format(name=name, grid=grid, version=version, stream=stream)
    return head + "".join(block_text(block, warps) for block, warps in blocks.items())


def write_logs(folder: Path, kernels, copies=()):
    """Write a folder with kernelslist.g and one log per text. Return the path of the list."""
    folder.mkdir(exist_ok=True)
    lines = [f"MemcpyHtoD,0x{address:016x},{size}" for address, size in copies]
    for number, text in enumerate(kernels, 1):
        (folder / f"kernel-{number}.traceg").write_text(text)
        lines.append(f"kernel-{number}.traceg")
    (folder / "kernelslist.g").write_text("\n".join(lines) + "\n")
    return folder / "kernelslist.g"


def random_accesses(random: Random, base: int, span: int):
    """Return ``(line, mode, bytes)`` of one random instruction on ``[base, base + span)``."""
    opcode, mode, width = random.choice(
        [
            ("LDG.E", 0, 4),
            ("LDG.E.128.CONSTANT.SYS", 0, 16),
            ("LDG.E.U8.SYS", 0, 1),
            ("STG.E.64", 1, 8),
            ("STG.E.U16", 1, 2),
            ("RED.E.ADD.F32.FTZ.RN", 2, 4),
            ("ATOMG.E.ADD.64.STRONG.GPU", 2, 8),
        ]
    )
    form = random.randrange(3)
    first = random.randrange(32)
    if form == 1:
        count = random.randrange(1, 33 - first)
        mask = ((1 << count) - 1) << first
        stride = random.choice([0, width, 2 * width, 32, -width])
        start = base + span // 2
        addresses = [start + n * stride for n in range(count)]
    else:
        mask = random.getrandbits(32) | 1 << first
        addresses = [base + random.randrange(0, span // 16) * 16 for _ in range(mask.bit_count())]
    touched_bytes = {byte for address in addresses for byte in range(address, address + width)}
    return access(opcode, mask, addresses, form), mode, touched_bytes
