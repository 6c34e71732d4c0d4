"""Instructions of machine code for sm_90, as nvdisasm prints them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTRUCTION_BYTES: Final = 16
_LINE: Final = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_GUARD: Final = re.compile(r"@(!?)(UP?\w+|P\w+)\s+")
_REGISTER: Final = re.compile(r"\b(UR|R|UP|P)(\d+|Z|T)\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its address in the code, its guard (a predicate, whether negated), operation and operands."""

    address: int
    guard: tuple[str, bool] | None
    operation: str
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        """The operation without what follows its first point."""
        return self.operation.partition(".")[0]


def disassembled(tool: Path, code: bytes) -> list[Instruction]:
    """Return the instructions of a kernel for sm_90; none where ``tool``, an nvdisasm, cannot read them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.bin"
        path.write_bytes(code)
        process = subprocess.run([tool, "--binary", "SM90a", path], capture_output=True, text=True, check=False)
    instructions = parse(process.stdout) if process.returncode == 0 else []
    whole = [i.address for i in instructions] == list(range(0, len(code), INSTRUCTION_BYTES))
    return instructions if whole else []


def parse(text: str) -> list[Instruction]:
    """Return the instructions of ``nvdisasm --binary``'s output."""
    out = []
    for match in _LINE.finditer(text):
        words = match[2]
        guard = None
        if guard_match := _GUARD.match(words):
            guard, words = (guard_match[2], bool(guard_match[1])), words[guard_match.end() :]
        operation, _, rest = words.partition(" ")
        operands = tuple(o.strip() for o in rest.split(",")) if rest.strip() else ()
        out.append(Instruction(int(match[1], 16), guard, operation, operands))
    return out


_ONE_WORD: Final = frozenset((
    "MOV", "UMOV", "IADD3", "UIADD3", "LOP3", "ULOP3", "SEL", "USEL", "SHF", "USHF", "LEA", "ULEA", "ISETP", "UISETP",
    "PLOP3", "UPLOP3", "S2R", "S2UR", "CS2R", "R2UR", "LDC", "ULDC", "IMAD", "UIMAD", "PRMT", "UPRMT", "IMNMX",
    "UIMNMX", "VIADD", "VIMNMX", "FSETP", "FADD", "FMUL", "FFMA", "I2F", "F2I", "I2FP", "POPC", "UPOPC", "FLO", "UFLO",
    "BREV", "UBREV", "VOTE", "VOTEU", "SHFL", "LDS", "LDG", "LD", "LDL", "ELECT", "MUFU", "FMNMX", "HFMA2", "HADD2",
    "HMUL2", "F2FP", "SGXT", "USGXT", "BMSK", "UBMSK", "LEPC", "IABS", "P2R", "R2P", "SYNCS", "FSEL", "FCHK", "MATCH",
    "REDUX", "I2I", "NOP",
))  # fmt: skip
"""Operations whose results are one word of a register, or two (``.64``, ``.WIDE``), or four (``.128``), and predicates
that are named."""
_NO_RESULT: Final = frozenset((
    "ACQBULK", "ARRIVES", "BAR", "BPT", "BREAK", "BSSY", "BSYNC", "CCTL", "CGAERRBAR", "DEPBAR", "ERRBAR", "EXIT",
    "FENCE", "LDGDEPBAR", "LDGSTS", "MEMBAR", "NANOSLEEP", "PREEXIT", "RED", "REDG", "ST", "STG", "STL", "STS", "STSM",
    "UBLKCP", "UBLKRED", "UCGABAR_ARV", "UCGABAR_WAIT", "USETMAXREG", "UTMACCTL", "UTMACMDFLUSH", "UTMALDG", "UTMAPF",
    "UTMAREDG", "UTMASTG", "WARPGROUP", "WARPSYNC", "YIELD",
))  # fmt: skip
_MANY_REGISTERS: Final = frozenset(
    ("HGMMA", "QGMMA", "IGMMA", "BGMMA", "HMMA", "IMMA", "DMMA", "LDSM", "ATOM", "ATOMG", "ATOMS")
)
"""Operations that write any number of registers, but no uniform ones."""


def written_registers(instruction: Instruction) -> list[str]:
    """Return all registers and predicates that an instruction may write, or more."""
    registers = [
        (kind, number) for o in instruction.operands for kind, number in _REGISTER.findall(o.partition("[")[0])
    ]
    out = [f"{kind}{number}" for kind, number in registers if kind in {"P", "UP"}]
    if instruction.name in _NO_RESULT:
        return out
    if instruction.name == "R2P":
        return [*out, *(f"P{n}" for n in range(7))]
    if instruction.name not in _ONE_WORD:
        uniform = 0 if instruction.name in _MANY_REGISTERS else 64
        return [*out, *(f"R{n}" for n in range(256)), *(f"UR{n}" for n in range(uniform))]
    two = r"\.(64|WIDE|X2)"
    wide = 4 if ".128" in instruction.operation else 2 if re.search(two, instruction.operation) else 1
    if instruction.name in {"CS2R", "LEPC", "F2I", "I2F", "LDS", "LDG", "LD", "LDL", "SYNCS", "SHFL", "ELECT"}:
        wide = max(wide, 4)
    kind, number = next(((k, n) for k, n in registers if k in {"R", "UR"}), ("R", "Z"))
    return out + [f"{kind}{int(number) + i}" for i in range(wide) if number.isdigit()]
