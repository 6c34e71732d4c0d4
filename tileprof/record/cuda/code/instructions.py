"""Instructions of machine code for sm_90, as nvdisasm prints them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
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


def instruction_lines(text: str) -> str:
    """Return what `parse` reads of ``nvdisasm --binary``'s output, one line per instruction."""
    return "\n".join(match[0] for match in _LINE.finditer(text))


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
    "UIMNMX", "VIADD", "VIMNMX", "VIMNMX3", "VIADDMNMX", "FSETP", "FADD", "FMUL", "FFMA", "I2F", "F2I", "I2FP", "POPC",
    "UPOPC", "FLO", "UFLO", "BREV", "UBREV", "VOTE", "VOTEU", "SHFL", "LDS", "LDG", "LD", "LDL", "ELECT", "MUFU",
    "FMNMX", "HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSET2", "HSETP2", "F2F", "F2FP", "FRND", "FSET", "SGXT", "USGXT",
    "BMSK", "UBMSK", "LEPC", "IABS", "P2R", "UP2UR", "R2P", "SYNCS", "FSEL", "FCHK", "MATCH", "REDUX", "I2I", "I2IP",
    "IDP", "VABSDIFF", "VABSDIFF4", "DADD", "DMUL", "DFMA", "DSETP", "FSWZADD", "BMOV", "B2R", "QSPC", "MOVM", "LDSM",
    "ATOM", "ATOMG", "ATOMS", "NOP",
))  # fmt: skip
"""Operations whose results are one word of a register, or two (``.64``, ``.WIDE``), or four (``.128``), and predicates
that are named."""
_NO_RESULT: Final = frozenset((
    "ACQBULK", "ARRIVES", "BAR", "BPT", "BRA", "BREAK", "BSSY", "BSYNC", "CCTL", "CGAERRBAR", "DEPBAR", "ENDCOLLECTIVE",
    "ERRBAR", "EXIT", "FENCE", "LDGDEPBAR", "LDGSTS", "MEMBAR", "NANOSLEEP", "PREEXIT", "RED", "REDG", "ST", "STAS",
    "STG", "STL", "STS", "STSM", "UBLKCP", "UBLKRED", "UCGABAR_ARV", "UCGABAR_WAIT", "USETMAXREG", "USETSHMSZ",
    "UTMACCTL", "UTMACMDFLUSH", "UTMALDG", "UTMAPF", "UTMAREDG", "UTMASTG", "WARPGROUP", "WARPSYNC", "YIELD",
))  # fmt: skip
_TWO: Final = frozenset(("CS2R", "LEPC", "DADD", "DMUL", "DFMA", "SYNCS", "BMOV", "QSPC", "B2R", "I2I"))
"""Operations that write up to two words, whatever their spelling says."""
_WIDE: Final = {"128": 4, "64": 2, "WIDE": 2, "X2": 2, "F64": 2, "S64": 2, "U64": 2, "F32x2": 2, "F32x4": 4}
"""Words of a result by what follows an operation's name."""
_ONLY_PREDICATES: Final = frozenset((
    "ISETP", "UISETP", "FSETP", "DSETP", "HSETP2", "FCHK", "PLOP3", "UPLOP3",
))  # fmt: skip
_PRODUCTS: Final = frozenset(("HMMA", "IMMA", "DMMA", "BMMA"))
"""Products of a warp: their results are at most eight words."""
_MANY_REGISTERS: Final = frozenset(("HGMMA", "QGMMA", "IGMMA", "BGMMA"))
"""Operations that write any number of registers, but no uniform ones."""


def written_registers(instruction: Instruction) -> list[str]:
    """Return all registers and predicates that an instruction may write, or more."""
    name = instruction.name
    if name in _NO_RESULT:
        return []
    if name in {"R2P", "UR2UP"}:
        return [f"{'P' if name == 'R2P' else 'UP'}{n}" for n in range(7)]
    # Predicates that are written stand among the first three operands, and are never negated.
    out = [
        f"{kind}{number}"
        for operand in instruction.operands[:3]
        for kind, number in _REGISTER.findall(operand.partition("[")[0])
        if kind in {"P", "UP"} and not operand.startswith("!") and number.isdigit()
    ]
    if name in _ONLY_PREDICATES:
        return out
    # A register that is written stands before any address.
    before = itertools.takewhile(lambda operand: not operand.startswith(("[", "desc[")), instruction.operands)
    registers = [
        (kind, number)
        for operand in before
        for kind, number in _REGISTER.findall(operand.partition("[")[0])
        if kind in {"R", "UR"}
    ]
    if name not in _ONE_WORD | _PRODUCTS:
        uniform = 0 if name in _MANY_REGISTERS else 64
        predicates = [] if name in _MANY_REGISTERS else [f"{kind}{n}" for kind in ("P", "UP") for n in range(7)]
        return [*out, *predicates, *(f"R{n}" for n in range(256)), *(f"UR{n}" for n in range(uniform))]
    wide = max([_WIDE.get(kind, 1) for kind in instruction.operation.split(".")])
    wide = max(wide, 8 if name in _PRODUCTS else 4 if name == "LDSM" else 2 if name in _TWO else 1)
    kind, number = registers[0] if registers else ("R", "Z")
    return out + [f"{kind}{int(number) + i}" for i in range(wide) if number.isdigit()]
