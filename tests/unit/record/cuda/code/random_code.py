"""Random programs of machine code, and an interpreter of one thread that goes step by step."""

import random
import re

from tileprof.record.cuda.code.instructions import parse

MASK = 0xFFFFFFFF


def code_of(lines):
    """Return instructions; ``{3}`` is the address of line 3."""
    text = "\n".join(f"        /*{16 * n:04x}*/  {line} ;" for n, line in enumerate(lines))
    return parse(re.sub(r"\{(\d+)\}", lambda m: hex(16 * int(m[1])), text))


BITS = ["0x1", "0x2", "0xfffffffe", "0xfffffffd", "0xffff", "0xf00"]


def random_line(rng, lines, n):
    """Return a random line for place ``n``."""
    register = lambda: f"R{rng.randrange(6)}"  # noqa: E731
    predicate = lambda: rng.choice(["P0", "P1", "P2"])  # noqa: E731
    negation = lambda: rng.choice(["", "!"])  # noqa: E731
    condition = lambda: rng.choice([negation() + predicate(), "PT"])  # noqa: E731
    constant = f"c[0x0][{hex(0x210 + 4 * rng.randrange(5))}]"
    word = lambda: rng.choice([register(), register(), "RZ", "0x1", "0x3", constant])  # noqa: E731
    pair = lambda: f"R{2 * rng.randrange(3)}"  # noqa: E731
    guard = rng.choice(["", "", f"@{negation()}{predicate()} "])
    compare = f"ISETP.{rng.choice(['LT', 'EQ', 'GE', 'NE'])}{rng.choice(['', '.U32'])}.{rng.choice(['AND', 'OR'])}"
    target = rng.randrange(lines) if rng.random() < 0.15 else min(n + 1 + rng.randrange(6), lines)
    choices = [
        (2, f"S2R {register()}, SR_TID.X"),
        (1, f"S2R {register()}, SR_CTAID.X"),
        (3, f"LDC {register()}, c[0x0][{hex(0x210 + 4 * rng.randrange(5))}]"),
        (3, f"MOV {register()}, {word()}"),
        (3, f"IADD3 {register()}, {register()}, {word()}, {register()}"),
        (1, f"IADD3 {register()}, {predicate()}, {register()}, {word()}, RZ"),
        (1, f"IADD3.X {register()}, {register()}, {word()}, RZ, {predicate()}, !PT"),
        (2, f"SEL {register()}, {register()}, {word()}, {condition()}"),
        (5, f"{compare} {predicate()}, PT, {register()}, {word()}, {condition()}"),
        (2, f"PLOP3.LUT {predicate()}, PT, {condition()}, {condition()}, PT, {rng.choice(['0x80', '0xa8', '0x2a'])}, 0x0"),  # noqa: E501
        (1, f"P2R {register()}, PR, RZ, {rng.choice(['0x1', '0x2', '0x4', '0x3'])}"),
        (1, f"ISETP.NE.AND {predicate()}, PT, {register()}, RZ, PT"),
        (3, f"LOP3.LUT {register()}, {register()}, {rng.choice(BITS)}, RZ, {rng.choice(['0xc0', '0xfc'])}, !PT"),
        (2, f"LOP3.LUT {predicate()}, RZ, {register()}, {rng.choice(BITS)}, RZ, 0xc0, !PT"),
        (1, f"R2P PR, {register()}, {rng.choice(['0x7', '0x3', '0x2'])}"),
        (1, f"PRMT {register()}, {register()}, {rng.choice(['0x7610', '0x5410', '0x3254'])}, {register()}"),
        (2, f"LDG.E {register()}, desc[UR4][{pair()}.64]"),
        (4, f"LDS {register()}, [{register()}]"),
        (2, f"STG.E desc[UR4][{pair()}.64], {register()}"),
        (8, f"BRA {{{target}}}"),
        (1, f"BRA {condition()}, {{{target}}}"),
        (1, "EXIT"),
    ]  # fmt: skip
    line = rng.choices([text for _, text in choices], [weight for weight, _ in choices])[0]
    if line.startswith(("BRA", "EXIT")) and not guard:
        guard = f"@{negation()}{predicate()} "
    return guard + line


POINTER = 0x218
"""Offset in the constant bank of a parameter that may be a pointer."""


def program(rng, pointers=False):
    """Return the lines of a random program; ``pointers``: with sums of a pointer among the parameters."""
    begin = [
        rng.choice([f"S2R R{n}, SR_TID.X", f"LDC R{n}, c[0x0][{hex(0x210 + 4 * rng.randrange(4))}]", f"MOV R{n}, 0x8"])
        for n in range(6)
    ]
    begin += [f"ISETP.LT.AND P{n}, PT, R{rng.randrange(6)}, 0x{rng.randrange(12):x}, PT" for n in range(3)]
    lines = len(begin) + rng.randrange(4, 16)
    body = list(begin)
    while len(body) < lines:
        if rng.random() < 0.1:  # a branch on memory, over instructions that touch none
            skipped = [random_line(rng, lines, len(body) + 3) for _ in range(rng.randrange(1, 4))]
            skipped = [line for line in skipped if not re.search("BRA|EXIT|STG|LDG", line)]
            register, predicate = f"R{rng.randrange(6)}", f"P{rng.randrange(3)}"
            body += [f"LDS {register}, [R0]", f"ISETP.NE.AND {predicate}, PT, {register}, RZ, PT"]
            body += [f"@{predicate} BRA {{{len(body) + 1 + len(skipped)}}}", *skipped]
        elif pointers and rng.random() < 0.2:
            low, index, carry = 2 * rng.randrange(3), f"R{rng.randrange(6)}", f"P{rng.randrange(3)}"
            body += [f"LDC.64 R{low}, c[0x0][{hex(POINTER)}]", f"LOP3.LUT {index}, {index}, 0xf0c, RZ, 0xc0, !PT"]
            body += [f"IADD3 R{low}, {carry}, R{low}, {index}, RZ"]
            body += [f"IADD3.X R{low + 1}, R{low + 1}, RZ, RZ, {carry}, !PT"]
            body += [f"{rng.choice(['', '@P0 ', '@!P1 '])}STG.E desc[UR4][R{low}.64], R0"]
        elif rng.random() < 0.1:  # a register that is written under a predicate, over what memory held
            pair, predicate, negation = rng.randrange(3), f"P{rng.randrange(3)}", rng.choice(["", "!"])
            register = f"R{2 * pair + rng.randrange(2)}"
            other = rng.choice([negation, negation, "", "!"])
            body += [f"LDS {register}, [R0]", f"@{negation}{predicate} S2R {register}, SR_TID.X"]
            body += [random_line(rng, lines, len(body)) for _ in range(rng.randrange(3))]
            body += [f"@{other}{predicate} STG.E desc[UR4][R{2 * pair}.64], R0"]
        elif rng.random() < 0.1:  # a predicate that is packed into a register, and unpacked
            pair, packed = rng.sample(range(3), 2)
            register, bit, predicate = f"R{2 * packed}", 1 << rng.randrange(3), f"P{rng.randrange(3)}"
            body += [f"LDS R{2 * pair}, [R0]", f"@{predicate} S2R R{2 * pair}, SR_TID.X"]
            body += [f"LDS {register}, [R0]", f"LOP3.LUT {register}, {register}, {hex(MASK ^ bit)}, RZ, 0xc0, !PT"]
            body += [f"@{predicate} LOP3.LUT {register}, {register}, {hex(bit)}, RZ, 0xfc, !PT"]
            body += [random_line(rng, lines, len(body)) for _ in range(rng.randrange(3))]
            body += [f"LOP3.LUT {predicate}, RZ, {register}, {hex(bit)}, RZ, 0xc0, !PT"]
            body += [f"@{rng.choice(['', '', '!'])}{predicate} STG.E desc[UR4][R{2 * pair}.64], R0"]
        else:
            body.append(random_line(rng, lines, len(body)))
    return [*body, "NOP", "NOP", "STG.E desc[UR4][R2.64], R0", "EXIT"]


def number(text):
    return int(text, 16) & MASK


def signed(value):
    return value - (1 << 32) if value >> 31 else value


class Thread:
    """Registers of a thread, and what its instructions compute. ``noise`` gives what is not known."""

    def __init__(self, bank, thread, block, noise):
        self.bank, self.places, self.noise = bank, (thread, block), noise
        self.state = {f"R{n}": noise.getrandbits(32) for n in range(6)}
        self.state |= {f"P{n}": noise.random() < 0.5 for n in range(3)}

    def word(self, text):
        if text.startswith("c["):
            return self.bank[int(text[7:-1], 16)]
        return 0 if text == "RZ" else self.state[text] if text in self.state else number(text)

    def holds(self, text):
        value = True if text.endswith("PT") else self.state[text.lstrip("!")]
        return value != text.startswith("!")

    def put(self, name, value):
        if name not in {"RZ", "PT"}:
            self.state[name] = value

    def address(self, text):
        low = int(re.search(r"\[R(\d+)\.64\]", text)[1])
        return self.state[f"R{low}"] | self.state[f"R{low + 1}"] << 32

    def compute(self, i):
        """Execute an instruction that moves or computes words."""
        o, put, word, holds = i.operands, self.put, self.word, self.holds
        if i.name == "LDS":
            put(o[0], self.noise.choice([0, 1, 2, 8]))
        elif i.name == "S2R":
            put(o[0], self.places["CTAID" in o[1]])
        elif i.operation == "LDC.64":
            put(o[0], word(o[1]))
            put(f"R{int(o[0][1:]) + 1}", self.bank[int(o[1][7:-1], 16) + 4])
        elif i.name in {"MOV", "LDC"}:
            put(o[0], word(o[1]))
        elif i.operation == "IADD3":
            terms = [word(w) for w in o[1:] if not w.startswith("P")]
            put(o[0], sum(terms) & MASK)
            if len(o) == 5:
                put(o[1], sum(terms) > MASK)
        elif i.operation == "IADD3.X":
            put(o[0], sum(word(w) for w in o[1:4]) + holds(o[4]) & MASK)
        elif i.name == "SEL":
            put(o[0], word(o[1] if holds(o[3]) else o[2]))
        elif i.name == "PRMT":
            whole = word(o[1]) | word(o[3]) << 32
            put(o[0], sum((whole >> 8 * (int(o[2], 16) >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4)))
        elif i.name != "NOP":
            self.decide(i)

    def decide(self, i):
        """Execute an instruction that takes or gives predicates."""
        o, put, word, holds = i.operands, self.put, self.word, self.holds
        if i.name == "ISETP":
            kinds, (a, b) = i.operation.split("."), (word(o[2]), word(o[3]))
            a, b = (a, b) if "U32" in kinds else (signed(a), signed(b))
            is_so, other = {"LT": a < b, "EQ": a == b, "GE": a >= b, "NE": a != b}[kinds[1]], holds(o[4])
            put(o[0], (is_so and other) if kinds[-1] == "AND" else (is_so or other))
        elif i.name == "PLOP3":
            a, b, c = (holds(text) for text in o[2:5])
            put(o[0], bool(int(o[5], 16) >> (4 * a + 2 * b + c) & 1))
        elif i.name == "LOP3":
            predicate, words = (o[0], o[1:]) if o[0].startswith("P") else (None, o)
            a, b = word(words[1]), word(words[2])
            put(words[0], a & b if words[4] == "0xc0" else a | b)
            if predicate is not None:
                put(predicate, a & b != 0)
        elif i.name == "R2P":
            for k in range(3):
                if int(o[2], 16) >> k & 1:
                    put(f"P{k}", bool(word(o[1]) >> k & 1))
        elif i.name == "P2R":
            put(o[0], sum(self.state[f"P{k}"] << k for k in range(3)) & int(o[3], 16))
        else:
            raise AssertionError(i.operation)


def run_thread(code, bank, thread, block, memory):
    """Return which instruction of a thread touches which address, in order; None where it does not end.

    ``memory``: seed of whatever is not known.
    """
    runs, touched, n = Thread(bank, thread, block, random.Random(memory)), [], 0
    place = {i.address: k for k, i in enumerate(code)}
    for _ in range(400):
        i, at = code[n], n
        o = i.operands
        n += 1
        if i.guard is not None and runs.state[i.guard[0]] == i.guard[1]:
            continue
        if i.name == "EXIT":
            return touched
        if i.name == "BRA":
            if all(runs.holds(text) for text in o[:-1]):
                n = place[int(o[-1], 16)]
        elif i.name in {"STG", "LDG"}:
            address = runs.address(o[i.name == "LDG"])
            touched.append((at, address))
            if i.name == "LDG":
                runs.put(o[0], random.Random(memory * 1000003 + address).choice([0, 1, 2, 8, 0xFFFFFFFF]))
        else:
            runs.compute(i)
    return None
